//! The page's files, which are part of the program.
//!
//! Must stay true: a path is looked up in a table and in nothing else, so no path leads out of it.

/// A file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    /// Its path below the token.
    path: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// The file at `path`.
pub(crate) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../page/", $file)),
        }
    };
}

static ASSETS: [Asset; 11] = [
    asset!("/", "text/html; charset=utf-8", "index.html"),
    asset!("/ui.css", "text/css; charset=utf-8", "ui.css"),
    asset!("/icon.svg", "image/svg+xml", "icon.svg"),
    asset!("/ui.js", SCRIPT, "ui.js"),
    asset!("/charts.js", SCRIPT, "charts.js"),
    asset!("/format.js", SCRIPT, "format.js"),
    asset!("/sections.js", SCRIPT, "sections.js"),
    asset!("/newick.js", SCRIPT, "newick.js"),
    asset!("/layout.js", SCRIPT, "layout.js"),
    asset!("/drawing.js", SCRIPT, "drawing.js"),
    asset!("/viewer.js", SCRIPT, "viewer.js"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_page_leads_elsewhere() {
        for asset in &ASSETS {
            let text = std::str::from_utf8(asset.bytes).expect("text");
            // The names of XML are no places that are fetched.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for word in [
                "http:",
                "https:",
                "//cdn",
                "eval(",
                "innerHTML",
                "document.write",
            ] {
                assert!(!text.contains(word), "{}: {word}", asset.path);
            }
            // The policy would refuse these: styles and handlers within the page.
            let words = text.split_whitespace().filter(|_| asset.path == "/");
            let is_inline = |word: &str| word.starts_with("on") || word.starts_with("style");
            let mut inline = words.filter(|word| word.contains('=') && is_inline(word));
            assert_eq!(inline.next(), None);
        }
    }

    #[test]
    fn each_file_of_the_folder_is_served_and_others_are_not() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let files = std::fs::read_dir(folder)
            .expect("the page's folder")
            .count();
        assert_eq!(files, ASSETS.len());
        for path in [
            "",
            "/index.html",
            "/../Cargo.toml",
            "/%2e%2e/Cargo.toml",
            "//",
            "/ui.js/",
        ] {
            assert!(find(path).is_none(), "{path}");
        }
        assert!(find("/").is_some());
    }
}
