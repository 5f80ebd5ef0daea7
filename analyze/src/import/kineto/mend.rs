//! What can be saved of a broken event: a copy of its text with the usual mistakes of whoever wrote it put right.
//!
//! The mistakes are those that people report: control characters and quotes in the names of kernels and Python frames,
//! backslashes of Windows paths, bytes that are no UTF-8, numbers that JSON does not have. Whether the copy is sound,
//! the parser decides; this only has to be right about texts that it makes sound.

/// A copy of an event's text with what is usually wrong put right.
pub(super) fn mended(event: &[u8]) -> String {
    let text = String::from_utf8_lossy(event);
    let mut out = String::with_capacity(text.len() + 16);
    let mut in_string = false;
    let mut rest = text.char_indices();
    while let Some((at, char)) = rest.next() {
        let after = &text[at + char.len_utf8()..];
        match char {
            '"' if in_string && !ends_a_string(after) => out.push_str("\\\""),
            '"' => {
                in_string = !in_string;
                out.push(char);
            }
            '\\' if in_string => {
                out.push_str(if is_an_escape(after) { "\\" } else { "\\\\" });
                // What is escaped is no quote that ends the string.
                if is_an_escape(after)
                    && let Some((_, escaped)) = rest.next()
                {
                    out.push(escaped);
                }
            }
            '\0'..' ' if in_string => out.push_str(&format!("\\u{:04x}", u32::from(char))),
            _ if in_string => out.push(char),
            _ => match no_number(&text[at..]) {
                // A minus before it stands in `out` already.
                Some(length) => {
                    out.truncate(out.strip_suffix('-').map_or(out.len(), str::len));
                    out.push_str("null");
                    rest.by_ref().take(length - 1).for_each(drop);
                }
                None => out.push(char),
            },
        }
    }
    out
}

/// Whether a quote ends its string, by what comes after it.
fn ends_a_string(after: &str) -> bool {
    let after = after.trim_ascii_start();
    match after.as_bytes().first() {
        None | Some(b':' | b'}' | b']') => true,
        Some(b',') => {
            matches!(after[1..].trim_ascii_start().as_bytes().first(), Some(b'"' | b'{' | b'[' | b'-' | b'0'..=b'9'))
        }
        Some(_) => false,
    }
}

/// Whether a backslash begins an escape that JSON has.
fn is_an_escape(after: &str) -> bool {
    match after.as_bytes() {
        [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => true,
        [b'u', hex @ ..] => hex.len() >= 4 && hex[..4].iter().all(u8::is_ascii_hexdigit),
        _ => false,
    }
}

/// The length of a word for what is no number: C, Python and JavaScript have their own.
fn no_number(text: &str) -> Option<usize> {
    ["NaN", "nan", "Infinity", "inf"].into_iter().find(|word| text.starts_with(word)).map(str::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn name(event: &[u8]) -> String {
        let value: Value = serde_json::from_str(&mended(event)).unwrap();
        value["name"].as_str().unwrap().to_owned()
    }

    #[test]
    fn names_that_no_parser_takes() {
        assert_eq!(name(b"{\"name\": \"a\x01b\nc\", \"ts\": 1}"), "a\u{1}b\nc");
        assert_eq!(name(br#"{"name": "f<"x">(int)", "ts": 1}"#), "f<\"x\">(int)");
        assert_eq!(name(br#"{"name": "say "hi", then go", "ts": 1}"#), "say \"hi\", then go");
        assert_eq!(name(br#"{"name": "C:\Users\x.py", "ts": 1}"#), r"C:\Users\x.py");
        assert_eq!(name(br#"{"name": "a \" b \u00e9 \\", "ts": 1}"#), "a \" b \u{e9} \\");
        assert_eq!(name(b"{\"name\": \"a\xffb\"}"), "a\u{fffd}b");
    }

    #[test]
    fn numbers_that_json_does_not_have() {
        let text = mended(br#"{"name": "inf", "args": {"a": NaN, "b": -inf, "c": -Infinity, "d": nan}}"#);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, serde_json::json!({"name": "inf", "args": {"a": null, "b": null, "c": null, "d": null}}));
    }

    proptest! {
        /// What is sound stays what it is, and nothing breaks on what is not.
        #[test]
        fn sound_events_stay(name in "\\PC*", number in any::<i32>(), noise in prop::collection::vec(any::<u8>(), 0..60)) {
            let event = serde_json::json!({"name": name, "args": {"n": number, "list": [name, name]}});
            // A string may have what looks like its end in it; then the parser refuses the copy, which costs the event.
            if let Ok(value) = serde_json::from_str::<Value>(&mended(event.to_string().as_bytes())) {
                prop_assert_eq!(value, event);
            }
            mended(&noise);
        }
    }
}
