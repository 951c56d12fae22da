// SPDX-License-Identifier: Apache-2.0
//! minijinja behind a C interface for chat templates, set up as Hugging Face transformers sets up
//! jinja2: trim_blocks, lstrip_blocks, loop controls, `tojson` without HTML escapes,
//! `raise_exception`, `strftime_now`, Python's string and dict methods, `{% generation %}`.
//!
//! Nothing unwinds across the border: every entry point catches panics. Fuel bounds the work and
//! the memory of a render, MAX_OUTPUT its output.

mod marks;
mod python;

use std::error::Error as _;
use std::ffi::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};

/// One fuel is about one instruction or 64 bytes of data: a bound of about a second and 400 MB.
const FUEL: u64 = 6_000_000;
const MAX_OUTPUT: usize = 64 << 20;
const MAX_RECURSION: usize = 120;
const NAME: &str = "chat_template";

/// The outcome of a call; the numbers are part of the interface.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq)]
enum Code {
    Ok = 0,
    /// The template called raise_exception; the text is its message.
    Raised = 1,
    /// A construct that minijinja does not have.
    Unsupported = 2,
    /// Out of fuel, output or recursion.
    Limit = 3,
    /// The template failed on this input.
    Failed = 4,
    /// The caller's JSON is not what was promised, or we have a bug.
    Internal = 5,
}

/// `strftime(format, local time now)` into `buffer`; returns the length.
type StrftimeNow = extern "C" fn(*const c_char, usize, *mut c_char, usize) -> usize;

#[repr(C)]
pub struct LodeText {
    code: i32,
    data: *mut u8,
    size: usize,
    capacity: usize,
}

fn text(code: Code, s: String) -> LodeText {
    let mut bytes = std::mem::ManuallyDrop::new(s.into_bytes());
    LodeText {
        code: code as i32,
        data: bytes.as_mut_ptr(),
        size: bytes.len(),
        capacity: bytes.capacity(),
    }
}

struct Template {
    env: Environment<'static>,
    bos: String,
    eos: String,
}

/// The source of `raise_exception`'s error, to tell it from all others.
#[derive(Debug)]
struct Raised(String);
impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

/// transformers' AssistantTracker tags mark the model's own text and print what they enclose.
/// Rewritten in place, with white-space control and line numbers kept.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let (inside, after) = tag.split_at(end);
        match inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&inside.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inside.replace("endgeneration", "endif")),
            _ => out.push_str(inside),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn describe(error: &Error) -> (Code, String) {
    let mut source = error.source();
    while let Some(e) = source {
        if let Some(raised) = e.downcast_ref::<Raised>() {
            return (Code::Raised, raised.0.clone());
        }
        source = e.source();
    }
    let line = error
        .line()
        .map_or(String::new(), |line| format!(" (line {line})"));
    let what = match error.detail() {
        Some(detail) => format!("{}: {}{}", error.kind(), detail, line),
        None => format!("{}{}", error.kind(), line),
    };
    let code = match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => Code::Limit,
        ErrorKind::SyntaxError
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::UnknownBlock
        | ErrorKind::TemplateNotFound
        | ErrorKind::BadInclude => Code::Unsupported,
        _ if what.contains("recursion limit") => Code::Limit,
        _ => Code::Failed,
    };
    (code, what)
}

fn environment(strftime_now: StrftimeNow) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("constant syntax"),
    );
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(MAX_RECURSION);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(python::print);
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", python::string);
    env.add_test("iterable", python::is_iterable);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", move |format: String| {
        let mut buffer = vec![0u8; 512];
        let size = strftime_now(
            format.as_ptr().cast(),
            format.len(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        );
        buffer.truncate(size);
        String::from_utf8_lossy(&buffer).into_owned()
    });
    env
}

fn render(
    template: &Template,
    input: &str,
    control: &[&str],
    marks_out: &mut String,
) -> Result<String, (Code, String)> {
    let mut root: serde_json::Value = serde_json::from_str(input)
        .map_err(|e| (Code::Internal, format!("conversation is not JSON: {e}")))?;
    if !control.is_empty() {
        *marks_out = marks::mark(&mut root, control).ok_or((
            Code::Limit,
            "no private-use characters left for marks".to_string(),
        ))?;
    }
    let Some(map) = root.as_object_mut() else {
        return Err((
            Code::Internal,
            "conversation is not a JSON object".to_string(),
        ));
    };
    map.entry("bos_token")
        .or_insert_with(|| template.bos.clone().into());
    map.entry("eos_token")
        .or_insert_with(|| template.eos.clone().into());
    let mut captured = LimitedOutput { bytes: Vec::new() };
    let compiled = template.env.get_template(NAME).map_err(|e| describe(&e))?;
    let value = Value::from(Serde(&root));
    compiled
        .render_captured_to(value, &mut captured)
        .map_err(|e| describe(&e))?;
    String::from_utf8(captured.bytes)
        .map_err(|_| (Code::Internal, "output is not UTF-8".to_string()))
}

struct LimitedOutput {
    bytes: Vec<u8>,
}
impl std::io::Write for LimitedOutput {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + data.len() > MAX_OUTPUT {
            return Err(std::io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn guarded(f: impl FnOnce() -> LodeText) -> LodeText {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|_| text(Code::Internal, "panic in minijinja".to_string()))
}

/// # Safety
/// `data` points to `size` bytes.
unsafe fn view<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

/// A view of bytes of the caller.
#[repr(C)]
pub struct LodeView {
    data: *const u8,
    size: usize,
}

/// Compiles `source`; `*out` becomes a handle for lode_jinja_render, freed by lode_jinja_free.
///
/// # Safety
/// All views point to their bytes; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn lode_jinja_compile(
    source: LodeView,
    bos: LodeView,
    eos: LodeView,
    strftime_now: StrftimeNow,
    out: *mut *mut c_void,
) -> LodeText {
    *out = std::ptr::null_mut();
    guarded(|| {
        let lossy = |v: &LodeView| String::from_utf8_lossy(view(v.data, v.size)).into_owned();
        let mut env = environment(strftime_now);
        let source = without_generation_tags(&lossy(&source));
        if let Err(error) = env.add_template_owned(NAME, source) {
            let (code, message) = describe(&error);
            return text(code, message);
        }
        let template = Box::new(Template {
            env,
            bos: lossy(&bos),
            eos: lossy(&eos),
        });
        *out = Box::into_raw(template).cast();
        text(Code::Ok, String::new())
    })
}

/// Renders the JSON object `input` (the template's variables). With `controls`, no string of the
/// input can spell one of them in the output: their beginnings are replaced by private-use
/// characters, and `*marks` lists those as pairs of (mark, original) characters.
///
/// # Safety
/// `handle` comes from lode_jinja_compile; the views point to their bytes; `marks` is writable.
#[no_mangle]
pub unsafe extern "C" fn lode_jinja_render(
    handle: *const c_void,
    input: LodeView,
    controls: *const LodeView,
    num_controls: usize,
    marks: *mut LodeText,
) -> LodeText {
    *marks = text(Code::Ok, String::new());
    guarded(|| {
        let template = &*handle.cast::<Template>();
        let input = String::from_utf8_lossy(view(input.data, input.size));
        let controls: Vec<&str> = (0..num_controls)
            .map(|i| &*controls.add(i))
            .filter_map(|v| std::str::from_utf8(view(v.data, v.size)).ok())
            .collect();
        let mut marked = String::new();
        let result = render(template, &input, &controls, &mut marked);
        lode_jinja_free_text(std::ptr::replace(marks, text(Code::Ok, marked)));
        match result {
            Ok(output) => text(Code::Ok, output),
            Err((code, message)) => text(code, message),
        }
    })
}

/// # Safety
/// `handle` comes from lode_jinja_compile and is not used afterwards; null is allowed.
#[no_mangle]
pub unsafe extern "C" fn lode_jinja_free(handle: *mut c_void) {
    if !handle.is_null() {
        drop(Box::from_raw(handle.cast::<Template>()));
    }
}

/// # Safety
/// `text` comes from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn lode_jinja_free_text(text: LodeText) {
    drop(Vec::from_raw_parts(text.data, text.size, text.capacity));
}
