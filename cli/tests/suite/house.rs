//! Files that need one another in a circle can only be read together: few circles, none across
//! folders (ARCHITECTURE.md, "The house").
//!
//! Why here: the compiler lets modules of a crate use one another as they like, and
//! `scripts/check-house` sees crates only. A module and the parts below it are one thing: that a
//! part names its parent's types is not counted. Names are resolved as far as paths and `use` say;
//! macro output is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders of crates.
const FOLDERS: [&str; 8] = [
    "core", "image", "daemon", "net", "phylo", "cell", "lab", ".",
];

/// The most circles of files, all crates together: the tasks of `core/pool`, and the state behind
/// the calls of `net/verbs`.
const CIRCLES_MAX: usize = 2;

type ModulePath = Vec<String>;

/// A source file.
struct Source {
    file: PathBuf,
    /// Identifiers and punctuation, without comments, strings' content and unit tests.
    tokens: Vec<String>,
    /// Names that `use` brings in, with the absolute paths they stand for.
    imports: BTreeMap<String, ModulePath>,
}

/// The modules of one crate.
struct Crate(BTreeMap<ModulePath, Source>);

#[test]
fn files_need_one_another_in_few_circles_and_none_across_folders() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut circles = Vec::new();
    let mut files = 0;
    for folder in FOLDERS {
        for entry in root.join(folder).read_dir().expect("a folder") {
            let folder = entry.expect("an entry").path().join("src");
            if folder.is_dir() {
                let modules = Crate::read(&folder);
                files += modules.0.len();
                circles.extend(modules.circles());
            }
        }
    }
    assert!(files > 300, "only {files} files were read");
    for circle in &circles {
        let folders: BTreeSet<_> = circle.iter().map(|file| folder_of(file)).collect();
        assert_eq!(folders.len(), 1, "a circle across folders: {circle:#?}");
    }
    assert!(circles.len() <= CIRCLES_MAX, "circles: {circles:#?}");
}

/// The check itself finds a circle, and only a circle.
#[test]
fn a_circle_is_found_through_what_is_passed_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write("lib.rs", "mod one;\nmod two;\npub use two::Two;");
    write("one.rs", "use crate::Two;\npub struct One(Two);");
    write("two.rs", "// crate::one::One\npub struct Two;");
    assert!(Crate::read(folder.path()).circles().is_empty());
    write("two.rs", "pub struct Two;\nfn f(_: super::one::One) {}");
    let circles = Crate::read(folder.path()).circles();
    assert_eq!(circles.len(), 1);
    assert_eq!(circles[0].len(), 2);
    write(
        "two.rs",
        "pub struct Two;\n#[cfg(test)]\nmod tests { use crate::one::One; }",
    );
    assert!(Crate::read(folder.path()).circles().is_empty());
}

/// `a/mod.rs` and `a.rs` belong with what lies in `a/`.
fn folder_of(file: &Path) -> PathBuf {
    let below = file.with_extension("");
    if below.is_dir() {
        below
    } else {
        file.parent().expect("a folder").to_path_buf()
    }
}

impl Crate {
    fn read(folder: &Path) -> Self {
        let mut modules = BTreeMap::new();
        collect(folder, &mut Vec::new(), &mut modules);
        let known: BTreeSet<ModulePath> = modules.keys().cloned().collect();
        for (path, source) in &mut modules {
            for (name, target) in imports(&source.tokens, path, &known) {
                source.imports.insert(name, target);
            }
        }
        Self(modules)
    }

    /// The file in which what `path` names is defined; none for names of other crates.
    fn definition(&self, path: &[String]) -> Option<&ModulePath> {
        let mut path = path.to_vec();
        // Names are passed on a few times at most.
        for _ in 0..8 {
            let prefix = (0..=path.len())
                .rev()
                .find(|&len| self.0.contains_key(&path[..len]))?;
            let (module, source) = self.0.get_key_value(&path[..prefix])?;
            let Some(name) = path.get(prefix) else {
                return Some(module);
            };
            match source.imports.get(name) {
                Some(target) if !source.defines(name) => {
                    let rest = &path[prefix + 1..];
                    path = [target.as_slice(), rest].concat();
                }
                // An item of this file, or one that a macro of it makes.
                _ => return Some(module),
            }
        }
        None
    }

    /// Groups of two or more files each of which needs, through others, all of them.
    fn circles(&self) -> Vec<Vec<PathBuf>> {
        let needs: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = self
            .0
            .iter()
            .map(|(path, source)| {
                let used = uses(&source.tokens, path, &self.0);
                let used = used.iter().filter_map(|target| self.definition(target));
                (
                    path,
                    used.filter(|target| !path.starts_with(target)).collect(),
                )
            })
            .collect();
        let reach: BTreeMap<_, _> = needs
            .keys()
            .map(|&path| (path, reached(path, &needs)))
            .collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for (&path, far) in &reach {
            if seen.contains(path) || !far.contains(path) {
                continue;
            }
            let members: Vec<_> = far
                .iter()
                .filter(|&other| reach[other].contains(path))
                .collect();
            seen.extend(members.iter().copied().copied());
            circles.push(
                members
                    .iter()
                    .map(|&&member| self.0[member].file.clone())
                    .collect(),
            );
        }
        circles
    }
}

fn reached<'a>(
    from: &'a ModulePath,
    needs: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
) -> BTreeSet<&'a ModulePath> {
    let mut far = BTreeSet::new();
    let mut next: Vec<_> = needs[from].iter().copied().collect();
    while let Some(path) = next.pop() {
        if far.insert(path) {
            next.extend(needs[path].iter().copied());
        }
    }
    far
}

impl Source {
    fn defines(&self, name: &str) -> bool {
        let kinds = [
            "struct", "enum", "union", "trait", "fn", "const", "static", "type", "mod",
        ];
        let mut pairs = self.tokens.windows(2);
        pairs.any(|pair| pair[1] == name && kinds.contains(&pair[0].as_str()))
    }
}

/// Reads a folder's files as modules; tests are left out.
fn collect(folder: &Path, path: &mut ModulePath, modules: &mut BTreeMap<ModulePath, Source>) {
    for entry in folder.read_dir().expect("a folder") {
        let file = entry.expect("an entry").path();
        let name = file
            .file_stem()
            .expect("a name")
            .to_str()
            .expect("plain")
            .to_owned();
        if name == "tests" || name == "bin" {
            continue;
        }
        let is_root = ["lib", "main", "mod"].contains(&name.as_str());
        if file.is_dir() {
            path.push(name);
            collect(&file, path, modules);
            path.pop();
        } else if file.extension().is_some_and(|end| end == "rs") {
            let tokens = tokens(&std::fs::read_to_string(&file).expect("text"));
            let mut own = path.clone();
            own.extend((!is_root).then_some(name));
            let imports = BTreeMap::new();
            modules.insert(
                own,
                Source {
                    file,
                    tokens,
                    imports,
                },
            );
        }
    }
}

/// Words and punctuation that paths are made of, up to the unit tests.
fn tokens(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in text.lines() {
        if line.trim() == "#[cfg(test)]" && text.contains("mod tests") {
            all.push("#[cfg(test)]".to_owned());
            continue;
        }
        let code = line.split("//").next().unwrap_or_default();
        let mut word = String::new();
        let mut quoted = false;
        let mut before = ' ';
        for letter in code.chars().chain(Some(' ')) {
            if letter == '"' && before != '\\' {
                quoted = !quoted;
            }
            if letter.is_alphanumeric() || letter == '_' {
                word.push(letter);
            } else {
                if !word.is_empty() && !quoted {
                    all.push(std::mem::take(&mut word));
                }
                word.clear();
                if letter == ':' && before == ':' {
                    all.push("::".to_owned());
                    before = ' ';
                    continue;
                }
                if !quoted && "{},;*".contains(letter) {
                    all.push(letter.to_string());
                }
            }
            before = letter;
        }
    }
    let is_test = |pair: &[String]| pair[0] == "#[cfg(test)]" && pair[1] == "mod";
    if let Some(at) = all.windows(2).position(is_test) {
        // The tests follow, or, for `mod tests;`, nothing that matters.
        all.truncate(at);
    }
    all
}

/// The absolute path of one that begins with `crate`, `super`, `self` or a module below.
fn absolute(
    path: &[String],
    module: &[String],
    known: &BTreeSet<ModulePath>,
) -> Option<ModulePath> {
    let mut base = module.to_vec();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|first| first == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
        first => {
            base.push(first.to_owned());
            if !known.contains(&base) {
                return None;
            }
            base.pop();
        }
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// All names that `use` brings in, with their paths.
fn imports(
    tokens: &[String],
    module: &[String],
    known: &BTreeSet<ModulePath>,
) -> Vec<(String, ModulePath)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" {
            at = tree(tokens, at + 1, &mut Vec::new(), &mut found);
        }
        at += 1;
    }
    found
        .into_iter()
        .filter_map(|(name, path)| Some((name, absolute(&path, module, known)?)))
        .collect()
}

/// One tree of a `use` from `at`; where it ends.
fn tree(
    tokens: &[String],
    mut at: usize,
    prefix: &mut ModulePath,
    found: &mut Vec<(String, ModulePath)>,
) -> usize {
    let depth = prefix.len();
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "::" => {}
            "{" => {
                loop {
                    at = tree(tokens, at + 1, prefix, found);
                    if tokens.get(at).is_none_or(|token| token != ",") {
                        break;
                    }
                }
                prefix.truncate(depth);
                return at + 1;
            }
            "as" => {
                if let Some(name) = tokens.get(at + 1) {
                    found.push((name.clone(), prefix.clone()));
                }
                prefix.truncate(depth);
                return at + 2;
            }
            "," | "}" | ";" => break,
            word => prefix.push(word.to_owned()),
        }
        at += 1;
    }
    if prefix.len() > depth {
        // `self` in braces is the module itself.
        if prefix.len() > 1 && prefix.last().is_some_and(|last| last == "self") {
            prefix.pop();
        }
        if let Some(name) = prefix.last() {
            found.push((name.clone(), prefix.clone()));
        }
    }
    prefix.truncate(depth);
    at
}

/// All absolute paths that a file's code names, in `use` or on the spot.
fn uses(
    tokens: &[String],
    module: &[String],
    modules: &BTreeMap<ModulePath, Source>,
) -> Vec<ModulePath> {
    let known: BTreeSet<ModulePath> = modules.keys().cloned().collect();
    let mut all: Vec<ModulePath> = imports(tokens, module, &known)
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    let imported = &modules[module].imports;
    let mut at = 0;
    while at + 1 < tokens.len() {
        if tokens[at + 1] != "::" || (at > 0 && tokens[at - 1] == "::") {
            at += 1;
            continue;
        }
        let mut path = vec![tokens[at].clone()];
        let mut next = at + 1;
        while tokens.get(next).is_some_and(|token| token == "::") && next + 1 < tokens.len() {
            path.push(tokens[next + 1].clone());
            next += 2;
        }
        // `queue::Entry` after `use crate::queue`.
        if let Some(base) = imported.get(&path[0]) {
            all.push([base.as_slice(), &path[1..]].concat());
        } else if let Some(path) = absolute(&path, module, &known) {
            all.push(path);
        }
        at = next;
    }
    all
}
