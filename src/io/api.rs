//! Requests of the HTTP library as the shard's API takes them, and the answer to a browser that asks first.
//!
//! A whole request flows in, an [`ApiRequest`] that borrows from it flows out. Always true: a field that stands twice,
//! where one may stand, is not guessed at.

use hyper::Method;

use super::web_server::WholeRequest;
use crate::shard::{ApiAnswer, ApiRequest, Origin};
use crate::wire::problem::Problem;

/// What the shard looks at.
///
/// # Errors
/// 400, naming the field.
pub(super) fn request(request: &WholeRequest, from: Origin) -> Result<ApiRequest<'_>, Problem> {
    Ok(ApiRequest {
        method: request.method(),
        path: request.head.uri.path(),
        query: request.head.uri.query().unwrap_or_default(),
        authorization: request.field("authorization")?,
        idempotency_key: request.field("idempotency-key")?,
        origin: request.field("origin")?,
        body: &request.body,
        from,
    })
}

/// The answer to a browser that asks whether its page of this origin may call (WHATWG Fetch, CORS-preflight); `None` if
/// that is not what is asked.
pub(super) fn preflight(request: &WholeRequest, origin: Option<&str>) -> Option<ApiAnswer> {
    let origin = origin.filter(|_| request.head.method == Method::OPTIONS)?;
    let fields = vec![
        ("access-control-allow-origin", origin.to_owned()),
        ("access-control-allow-methods", "GET, POST, PUT, PATCH, DELETE".to_owned()),
        ("access-control-allow-headers", "authorization, content-type, idempotency-key, last-event-id".to_owned()),
        ("access-control-max-age", "600".to_owned()),
        ("vary", "origin".to_owned()),
    ];
    Some(ApiAnswer { status: 204, content_type: "text/plain", body: Vec::new(), fields })
}
