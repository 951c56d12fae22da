// SPDX-License-Identifier: Apache-2.0
//! Values written as Python writes them: `tojson` is json.dumps, and printing is str().

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

use crate::marks::is_private_use;

struct JsonStyle {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// `json.dumps(value, ensure_ascii=False, indent=..., separators=..., sort_keys=...)`, the filter
/// that transformers registers.
pub fn tojson(value: &Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = args.get("indent")?;
    let separators: Option<Vec<String>> = args.get("separators")?;
    let ensure_ascii = args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    args.assert_all_used()?;
    let indent = match indent {
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(indent.clone())?.min(64)),
        }),
        None => None,
    };
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "separators must be a pair",
            ))
        }
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let style = JsonStyle {
        ensure_ascii,
        sort_keys,
        indent,
        item_separator,
        key_separator,
    };
    let mut out = String::new();
    write_json(&mut out, value, &style, 0)?;
    Ok(Value::from(out))
}

fn write_json(
    out: &mut String,
    value: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => {
            quote_json(out, value.as_str().unwrap_or_default(), style.ensure_ascii)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let write = |out: &mut String, item: &Value| write_json(out, item, style, depth + 1);
            write_block(out, ('[', ']'), &items, style, depth, write)?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            let write = |out: &mut String, key: &Value| {
                let name = match key.kind() {
                    ValueKind::None => "null".to_string(),
                    ValueKind::Bool => key.is_true().to_string(),
                    _ => key.to_string(),
                };
                quote_json(out, &name, style.ensure_ascii);
                out.push_str(&style.key_separator);
                write_json(out, &value.get_item(key)?, style, depth + 1)
            };
            write_block(out, ('{', '}'), &keys, style, depth, write)?;
        }
        kind => {
            let detail = format!("a value of kind {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::BadSerialization, detail));
        }
    }
    Ok(())
}

fn write_block(
    out: &mut String,
    brackets: (char, char),
    items: &[Value],
    style: &JsonStyle,
    depth: usize,
    mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let newline = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(brackets.0);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        newline(out, depth + 1);
        write(out, item)?;
    }
    if !items.is_empty() {
        newline(out, depth);
    }
    out.push(brackets.1);
    Ok(())
}

fn quote_json(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{C}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ensure_ascii && c > '~' && !is_private_use(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's repr of an int or float.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => python_float(float),
        Err(_) => value.to_string(),
    }
}

fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_string();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{float:?}");
    }
    format!(
        "{digits}e{}{:02}",
        if exponent < 0 { '-' } else { '+' },
        exponent.abs()
    )
}

/// The formatter of `{{ value }}`: Python's str().
pub fn print(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(Error::from);
    }
    let mut text = String::new();
    write_str(&mut text, value, 0)?;
    out.write_str(&text).map_err(Error::from)
}

/// The test `iterable`: None is not (templates ask `tools is iterable and tools|length > 0`).
pub fn is_iterable(value: &Value) -> bool {
    !matches!(
        value.kind(),
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain
    )
}

/// The filter `string`.
pub fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut text = String::new();
    write_str(&mut text, value, 0)?;
    Ok(Value::from(text))
}

fn write_str(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    let Some(text) = value.as_str() else {
        return write_str(out, value, depth);
    };
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    Ok(())
}

/// Values nest as deep as the caller's JSON (serde_json stops at 128) or as a template builds them.
fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > 200 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "recursion limit: value nested too deeply",
        ));
    }
    Ok(())
}
