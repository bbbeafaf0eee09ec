//! Which apps live here, and where the others are.
//!
//! `[cell]` and every `[[other_cell]]` flow in, after the apps; the apps of this node and the addresses of the others
//! flow out. Always true: an app is on exactly one cell, so one file can serve all nodes but for the line that says which
//! cell is whose.

use super::Config;
use super::table::{Sheet, Table};
use crate::base::Name;

/// Other cells of one configuration.
const CELLS_MAX: usize = 256;

/// Reads the tables, and lets go of the apps that are elsewhere.
pub(super) fn read(sheet: &mut Sheet<'_>, config: &mut Config) {
    let mut others = 0;
    let elsewhere = &mut config.elsewhere;
    sheet.tables("other_cell", |t| {
        others += 1;
        if others > CELLS_MAX {
            t.fault("address", false, format!("at most {CELLS_MAX} other cells are allowed"));
        }
        other(t, elsewhere);
    });
    sheet.table("cell", |t| {
        let here = names(t).unwrap_or_default();
        settle(t, &here, config);
    });
}

fn names(t: &mut Table<'_, '_>) -> Option<Vec<Name>> {
    let texts = t.texts("apps")?;
    match texts.iter().map(|text| Name::new(text).map_err(|why| format!("{text:?}: {why}"))).collect() {
        Ok(names) => Some(names),
        Err(why) => {
            t.fault("apps", false, why);
            None
        }
    }
}

fn other(t: &mut Table<'_, '_>, elsewhere: &mut Vec<(Name, String)>) {
    let address = t.text("address", false).unwrap_or_default();
    let apps = names(t).unwrap_or_default();
    let host = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    if host.is_none_or(|host| host.is_empty() || host.contains(['/', ' ', '?', '#'])) {
        let why = "scheme and host are allowed, such as \"https://b.example\": what clients put in front of /v1/…";
        return t.fault("address", false, why);
    }
    for app in apps {
        if let Some((_, before)) = elsewhere.iter().find(|(other, _)| *other == app) {
            return t.fault("apps", false, format!("app {app} is on the cell at {before} already"));
        }
        elsewhere.push((app, address.clone()));
    }
}

/// Every app is on one cell, and this node keeps its own.
fn settle(t: &mut Table<'_, '_>, here: &[Name], config: &mut Config) {
    let (apps, elsewhere) = (&mut config.apps, &config.elsewhere);
    let is_elsewhere = |name: &Name| elsewhere.iter().any(|(other, _)| other == name);
    if let Some(name) = here.iter().find(|name| is_elsewhere(name)) {
        return t.fault("apps", false, format!("app {name} is on another cell, too"));
    }
    if let Some(name) = here.iter().find(|name| apps.iter().all(|app| app.name != **name)) {
        return t.fault("apps", false, format!("there is no [[app]] of the name {name}"));
    }
    let lost = apps.iter().find(|app| !here.is_empty() && !here.contains(&app.name) && !is_elsewhere(&app.name));
    if let Some(app) = lost {
        return t.fault("apps", false, format!("app {} is on no cell: name it here or in an [[other_cell]]", app.name));
    }
    let before = apps.len();
    apps.retain(|app| !is_elsewhere(&app.name));
    config.blocklist_files.retain(|(app, _)| !is_elsewhere(app));
    if before > 0 && apps.is_empty() {
        t.fault("apps", false, "no app is left for this cell: all of them are on others");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;

    const APPS: &str = "[[app]]\nname = \"shop\"\nserver_key_sha256 = \"HASH\"\n[[app]]\nname = \"game\"\nserver_key_sha256 = \"HASH\"\n";

    fn apps() -> String {
        APPS.replace("HASH", &"0".repeat(64))
    }

    #[test]
    fn an_app_of_another_cell_is_let_go_and_its_address_is_known() {
        let other = "[[other_cell]]\naddress = \"https://b.example\"\napps = [\"game\", \"news\"]\n";
        for here in ["", "[cell]\napps = [\"shop\"]\n"] {
            let config = load(&format!("{here}{other}{}", apps())).unwrap();
            assert_eq!(config.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(), ["shop"]);
            let dir = tempfile::tempdir().unwrap();
            let opened = super::super::Config { data_dir: dir.path().into(), ..config }.open_apps().unwrap();
            assert!(opened.find("shop").is_ok());
            let problem = opened.find("news").unwrap_err();
            assert_eq!((problem.status, *problem.member.unwrap()), (421, ("cell", "https://b.example".into())));
            assert_eq!(*problem.header.unwrap(), ("location", "https://b.example/v1/news".into()));
            assert_eq!(opened.find("nobody").unwrap_err().status, 404);
        }
        assert_eq!(load(&apps()).unwrap().apps.len(), 2);
    }

    #[test]
    fn an_app_is_on_exactly_one_cell() {
        let other = |apps: &str| format!("[[other_cell]]\naddress = \"https://b.example\"\napps = [{apps}]\n");
        for (cells, start) in [
            ("[cell]\napps = [\"shop\"]\n".to_owned(), "x.toml:2: cell.apps = [\"shop\"]\n  app game is on no cell"),
            ("[cell]\napps = [\"shop\", \"gone\"]\n".to_owned(), "x.toml:2: cell.apps = "),
            (format!("[cell]\napps = [\"shop\", \"game\"]\n{}", other("\"game\"")), "x.toml:2: cell.apps = "),
            (other("\"shop\", \"game\""), "x.toml:1: cell.apps is missing\n  no app is left"),
            (format!("{}{}", other("\"game\""), other("\"game\"")), "x.toml:6: other_cell.apps = "),
            (other("\"a b\""), "x.toml:3: other_cell.apps = "),
            ("[[other_cell]]\naddress = \"b.example\"\napps = []\n".to_owned(), "x.toml:2: other_cell.address = "),
            ("[[other_cell]]\naddress = \"https://b/x\"\n".to_owned(), "x.toml:2: other_cell.address = "),
        ] {
            let error = load(&format!("{cells}{}", apps())).map(|_| ()).unwrap_err();
            assert!(error.starts_with(start), "{cells}\n{error}");
        }
    }
}
