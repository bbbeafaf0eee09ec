//! The JSON that the node writes.
//!
//! Fields flow in, text is appended. Always true: what is appended is whole JSON, in one walk and without a tree.

use super::sealed::{Event, Member};
use super::topic::Scope;

/// Appends the event as the JSON object that clients and the history call get.
pub fn put_json(out: &mut Vec<u8>, event: &Event) {
    out.extend_from_slice(b"{\"type\":");
    put_string(out, event.type_name());
    if event.topic.scope == Scope::Channel {
        out.extend_from_slice(b",\"channel\":");
        put_string(out, event.topic.name.as_str());
    }
    if event.seq != 0 {
        out.extend_from_slice(b",\"seq\":");
        put_number(out, event.seq);
    }
    if let Some(id) = event.id {
        out.extend_from_slice(b",\"id\":\"");
        out.extend_from_slice(&id.to_text());
        out.push(b'"');
    }
    out.extend_from_slice(b",\"ts\":");
    put_number(out, event.ts_ms);
    if !event.user_id.is_empty() {
        out.extend_from_slice(b",\"user\":{\"id\":");
        put_string(out, &event.user_id);
        if !event.user_name.is_empty() {
            out.extend_from_slice(b",\"name\":");
            put_string(out, &event.user_name);
        }
        out.push(b'}');
    }
    for (name, member) in &event.members {
        out.push(b',');
        put_string(out, name);
        out.push(b':');
        match member {
            Member::Text(text) => put_string(out, text),
            Member::Number(number) => put_number(out, *number),
            Member::Json(json) => out.extend_from_slice(json.as_bytes()),
        }
    }
    if let Some(text) = &event.text {
        out.extend_from_slice(b",\"text\":");
        put_string(out, text);
    }
    if let Some(data) = &event.data {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(data.as_bytes());
    }
    out.push(b'}');
}

/// Appends `text` as a JSON string.
pub fn put_string(out: &mut Vec<u8>, text: &str) {
    let at = out.len();
    if serde_json::to_writer(&mut *out, text).is_err() {
        // Writing to memory cannot fail; if it ever did, an empty string keeps the object whole.
        out.truncate(at);
        out.extend_from_slice(b"\"\"");
    }
}

/// Appends a whole number in decimal.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for n in [0, 9, 10, 12_345, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, n);
            assert_eq!(String::from_utf8(out).unwrap(), n.to_string());
        }
    }

    #[test]
    fn strings() {
        for text in ["", "plain", "\"\\/\u{8}\u{c}\n\r\t\0\u{7f}", "\u{2028} é 🏁"] {
            let mut out = Vec::new();
            put_string(&mut out, text);
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }
    }
}
