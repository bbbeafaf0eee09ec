//! Which types of events a reader wants.
//!
//! Names flow in, a set of kinds flows out. Always true: a name that is in no registry is refused, so that a slip of the
//! pen is not taken for silence.

use super::event::{EventKind, KindSet, REGISTRY};
use super::problem::Problem;

/// The most event types in one `filter`.
const FILTER_KINDS_MAX: usize = 32;

/// The types that a filter lets through: names, or `prefix.*`; without any, all. Custom events have one kind together, so
/// the name of one lets all of them through.
///
/// # Errors
/// 400, naming what is not in the registry.
pub fn parse_filter<'t>(parts: impl Iterator<Item = &'t str>) -> Result<KindSet, Problem> {
    let mut set = KindSet::default();
    for (i, part) in parts.map(str::trim).filter(|part| !part.is_empty()).enumerate() {
        if i >= FILTER_KINDS_MAX {
            return Err(Problem::bad("bad_filter", format!("a filter names at most {FILTER_KINDS_MAX} types")));
        }
        let before = set;
        let prefix = part.strip_suffix('*');
        for row in REGISTRY {
            if prefix.map_or(row.name == part, |prefix| prefix.ends_with('.') && row.name.starts_with(prefix)) {
                set.insert(row.kind);
            }
        }
        if part.starts_with("custom.") {
            set.insert(EventKind::Custom);
        }
        if set == before && !matches!(EventKind::parse(part), Ok(kind) if set.contains(kind)) {
            return Err(Problem::bad("bad_filter", format!("filter {part:?} names no event type")));
        }
    }
    // Nothing named is nothing wished.
    Ok(if set == KindSet::default() { KindSet::ALL } else { set })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        assert_eq!(parse_filter("nonsense".split(',')).unwrap_err().code, "bad_filter");
        assert_eq!(parse_filter("mess*".split(',')).unwrap_err().code, "bad_filter");
        assert_eq!(parse_filter(" ,".split(',')), Ok(KindSet::ALL), "no wish is no filter");
        let set = parse_filter("message.new,message.new".split(',')).unwrap();
        assert!(set.contains(EventKind::MessageNew) && !set.contains(EventKind::MessageUpdated));
    }
}
