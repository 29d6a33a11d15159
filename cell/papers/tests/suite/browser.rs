//! The page in a real browser: every figure is there, no error is said, and nothing is wider than a
//! phone.
//!
//! Without Chromium this prints so and tests nothing (`scripts/setup --browser` installs it).
//! `SIDECORE_PAGE=FILE` keeps the page for looking at it.

use crate::{canned, made};
use sidecore_papers::Catalogue;
use std::path::Path;
use std::process::Command;

/// The page's own tree, as the browser has it when it is done.
fn load(program: &str, directory: &Path, html: &str) -> (String, String) {
    let file = directory.join("page.html");
    std::fs::write(&file, html).unwrap();
    // A hang fails the test instead of stopping it.
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120", program])
        // Root has no sandbox there, and /dev/shm may be small.
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--no-first-run",
            "--enable-logging=stderr",
            "--v=0",
            "--window-size=1200,900",
        ])
        .arg(format!(
            "--user-data-dir={}",
            directory.join("profile").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {errors}", output.status);
    (String::from_utf8(output.stdout).unwrap(), errors)
}

fn browser() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|program| {
            let version = Command::new(program).arg("--version").output();
            version.is_ok_and(|output| output.status.success())
        });
    if found.is_none() {
        println!("skipped: no Chromium is installed; `scripts/setup --browser` installs it");
    }
    found
}

#[test]
fn a_browser_shows_every_figure_and_says_no_error() {
    let catalogue = Catalogue::built_in().unwrap();
    let results = canned(&catalogue);
    let page = made(&catalogue, &results);
    if let Some(path) = std::env::var_os("SIDECORE_PAGE") {
        std::fs::write(path, &page).unwrap();
    }
    let Some(program) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (tree, errors) = load(program, directory.path(), &page);
    for name in catalogue.figures.iter().flat_map(|figure| figure.names()) {
        assert!(
            tree.contains(&format!("id=\"{name}\"")),
            "{name} is not in the tree"
        );
    }
    let said: Vec<&str> = errors
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(said.is_empty(), "{said:?}");
    // A repair by the parser is a mistake of ours: it would move or drop misplaced elements.
    assert_eq!(
        tree.matches("<article").count(),
        page.matches("<article").count()
    );
    assert_eq!(tree.matches("<svg").count(), page.matches("<svg").count());
    assert_eq!(tree.matches("<tr").count(), page.matches("<tr").count());
}

#[test]
fn nothing_is_wider_than_a_phone() {
    let catalogue = Catalogue::built_in().unwrap();
    let page = made(&catalogue, &canned(&catalogue));
    let Some(program) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    // The page in a frame as wide as a phone; only the frame around it has a script.
    let inside = page.replace('&', "&amp;").replace('"', "&quot;");
    let around = format!(
        "<!doctype html><iframe width=360 height=740 srcdoc=\"{inside}\"></iframe><script>\
         onload = () => {{ const it = document.querySelector('iframe').contentDocument;\
         const wide = [...it.querySelectorAll('body *')].filter(each => \
           each.getBoundingClientRect().right > 361).map(each => each.outerHTML.slice(0, 80));\
         document.title = 'wide: ' + it.documentElement.scrollWidth + ' ' + wide.slice(0, 3); }}\
         </script>"
    );
    let (tree, _) = load(program, directory.path(), &around);
    let title = tree.split("<title>").nth(1).unwrap_or("no title");
    let width = title.trim_start_matches("wide: ").split(' ').next();
    let width: u32 = width
        .unwrap_or("")
        .parse()
        .unwrap_or_else(|_| panic!("{title:.200}"));
    assert!(width <= 361, "{title:.400}");
}
