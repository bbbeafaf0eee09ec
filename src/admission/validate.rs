//! Is this something that may be posted? A body flows in, text and data whose size and form are known flow out.

use crate::wire::command::PostBody;
use crate::wire::problem::Problem;

/// The longest `client_id` or idempotency key, in bytes.
pub const CLIENT_ID_BYTES_MAX: usize = 128;
/// The longest name to show for a user, in bytes.
pub const USER_NAME_BYTES_MAX: usize = 256;

/// What may be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// A string.
    pub text: Option<String>,
    /// JSON.
    pub data: Option<String>,
    /// Echoed in the ack.
    pub client_id: Option<String>,
}

/// Measures a post: text or data, or both, and together at most `bytes_max` bytes.
///
/// # Errors
/// 400 if there is nothing in it or a field is too long, 413 if it is too large.
pub fn content(body: &PostBody<'_>, bytes_max: u32) -> Result<Content, Problem> {
    if body.text.is_none() && body.data.is_none() {
        return Err(Problem::new(400, "nothing_posted", "a message has `text` or `data`, or both"));
    }
    let bytes = body.text.as_ref().map_or(0, |t| t.len()) + body.data.map_or(0, |d| d.get().len());
    if bytes > bytes_max as usize {
        let detail = format!("text and data have {bytes} bytes together, at most {bytes_max} are taken");
        return Err(Problem::new(413, "message_too_large", detail));
    }
    if body.client_id.as_ref().is_some_and(|id| id.len() > CLIENT_ID_BYTES_MAX) {
        let detail = format!("client_id has at most {CLIENT_ID_BYTES_MAX} bytes");
        return Err(Problem::new(400, "client_id_too_long", detail));
    }
    Ok(Content {
        text: body.text.as_deref().map(str::to_owned),
        data: body.data.map(|data| data.get().to_owned()),
        client_id: body.client_id.as_deref().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(json: &str) -> PostBody<'_> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn sizes_at_their_edges() {
        assert_eq!(content(&body("{}"), 10).unwrap_err().code, "nothing_posted");
        assert!(content(&body(r#"{"text":"0123456789"}"#), 10).is_ok());
        assert_eq!(content(&body(r#"{"text":"0123456789","data":1}"#), 10).unwrap_err().status, 413);
        assert_eq!(content(&body(r#"{"data":{"a": [1]}}"#), 99).unwrap().data.as_deref(), Some(r#"{"a": [1]}"#));
    }
}
