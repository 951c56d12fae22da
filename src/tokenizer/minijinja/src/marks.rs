// SPDX-License-Identifier: Apache-2.0
//! Keeps control tokens out of what users wrote. Wherever a string of the conversation could begin
//! a control token, that one character is replaced by a private-use character ("mark"); the caller
//! puts it back after it has found the control tokens that the template itself wrote.
//!
//! A string could begin a control token where one starts in full or with its first PREFIX
//! characters, and at its end with fewer. So a token cannot be assembled from two strings that the
//! template joins, nor by the template cutting something out of the middle of one. Shorter prefixes
//! would catch more, but change what templates look for in a content ("</think>").

use serde_json::Value;

const PREFIX: usize = 3;
const PRIVATE_USE: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10FFFD}';

/// The mark character of plane 16? `tojson(ensure_ascii=true)` leaves those alone so that marks
/// survive it.
pub fn is_private_use(c: char) -> bool {
    PRIVATE_USE.contains(&c)
}

struct Marker {
    prefixes: Vec<String>,
    /// (original, mark) of each different first character.
    marks: Vec<(char, char)>,
}

impl Marker {
    fn mark_of(&self, s: &str) -> Option<char> {
        let first = s.chars().next()?;
        let &(_, mark) = self.marks.iter().find(|(original, _)| *original == first)?;
        let begins = |p: &String| s.starts_with(p.as_str()) || p.starts_with(s);
        self.prefixes.iter().any(begins).then_some(mark)
    }

    fn apply(&self, s: &str) -> Option<String> {
        let mut out = String::new();
        let mut copied = 0;
        for (i, c) in s.char_indices() {
            if let Some(mark) = self.mark_of(&s[i..]) {
                out.push_str(&s[copied..i]);
                out.push(mark);
                copied = i + c.len_utf8();
            }
        }
        if copied == 0 {
            return None;
        }
        out.push_str(&s[copied..]);
        Some(out)
    }

    fn walk(&self, value: &mut Value) {
        match value {
            Value::String(s) => {
                if let Some(marked) = self.apply(s) {
                    *s = marked;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.walk(item)),
            Value::Object(map) => {
                map.values_mut().for_each(|item| self.walk(item));
                if map.keys().any(|key| self.apply(key).is_some()) {
                    *map = std::mem::take(map)
                        .into_iter()
                        .map(|(key, item)| (self.apply(&key).unwrap_or(key), item))
                        .collect();
                }
            }
            _ => {}
        }
    }
}

fn any_char(value: &Value, found: &mut impl FnMut(char)) {
    match value {
        Value::String(s) => s.chars().for_each(found),
        Value::Array(items) => items.iter().for_each(|item| any_char(item, found)),
        Value::Object(map) => map.iter().for_each(|(key, item)| {
            key.chars().for_each(&mut *found);
            any_char(item, found);
        }),
        _ => {}
    }
}

/// Marks all strings of `root`; returns the pairs (mark, original), nothing when the conversation
/// uses up the private-use plane itself.
pub fn mark(root: &mut Value, control: &[&str]) -> Option<String> {
    let mut used = std::collections::HashSet::new();
    any_char(root, &mut |c| {
        if is_private_use(c) {
            used.insert(c);
        }
    });
    let mut free = PRIVATE_USE.filter(|c| !used.contains(c));
    let mut marker = Marker {
        prefixes: Vec::new(),
        marks: Vec::new(),
    };
    let mut pairs = String::new();
    for token in control {
        let Some(first) = token.chars().next() else {
            continue;
        };
        let prefix: String = token.chars().take(PREFIX).collect();
        if !marker.prefixes.contains(&prefix) {
            marker.prefixes.push(prefix);
        }
        if !marker.marks.iter().any(|(original, _)| *original == first) {
            let mark = free.next()?;
            marker.marks.push((first, mark));
            pairs.push(mark);
            pairs.push(first);
        }
    }
    marker.walk(root);
    Some(pairs)
}
