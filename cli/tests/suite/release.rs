//! A release: one version everywhere, complete crates, packages without dead links, an installer
//! that takes nothing damaged, and the workflow that makes them.
//!
//! Tools that may be missing here (readelf, shellcheck, actionlint) are named where their check is
//! skipped.

use super::pages::links;
use super::repository::{files, root};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// Address of the source in the documents.
const REPOSITORY: &str = "https://github.com/sidecore/sidecore";

/// The workspace's version.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The part of the version that shared libraries have in their names.
fn interface() -> String {
    match env!("CARGO_PKG_VERSION_MAJOR") {
        "0" => format!("0.{}", env!("CARGO_PKG_VERSION_MINOR")),
        major => major.to_owned(),
    }
}

/// Folders of the crates that are published, with their manifests.
fn published() -> BTreeMap<&'static str, &'static str> {
    let manifests = files().iter().filter_map(|(name, text)| {
        let folder = name.strip_suffix("/Cargo.toml")?;
        let is_ours = text.contains("version.workspace = true");
        (is_ours && !text.contains("publish = false")).then_some((folder, &**text))
    });
    manifests.collect()
}

fn sidecore(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command.args(arguments).output().unwrap()
}

/// A version of three numbers at the beginning of a text.
fn leading_version(text: &str) -> Option<&str> {
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.');
    let found = text[..end.unwrap_or(text.len())].trim_end_matches('.');
    (found.split('.').count() == 3).then_some(found)
}

#[test]
fn one_version_stands_everywhere() {
    let files = files();
    let mut others = Vec::new();
    let mut expect = |place: &str, found: Option<&str>| {
        if found != Some(version()) {
            others.push(format!("{place}: {found:?}"));
        }
    };
    let manifest = &files["Cargo.toml"];
    for line in manifest
        .lines()
        .filter(|line| line.starts_with("sidecore-"))
    {
        let found = line.split("version = \"").nth(1);
        expect(line, found.and_then(leading_version));
    }
    let locked = files["Cargo.lock"].split("\n\n");
    for entry in locked.filter(|entry| entry.contains("name = \"sidecore-")) {
        let found = entry.split("version = \"").nth(1);
        expect(entry, found.and_then(leading_version));
    }
    for (file, before) in [
        ("CITATION.cff", "\nversion: "),
        ("packaging/bioconda/meta.yaml", "set version = \""),
    ] {
        let found = files[file].split(before).nth(1);
        expect(file, found.and_then(leading_version));
    }
    let sections = files["CHANGELOG.md"].split("\n## ").skip(1);
    let newest = sections.map(leading_version).find(Option::is_some);
    expect("CHANGELOG.md", newest.flatten());
    // Names of artefacts, wherever a page or a script has one.
    let is_text = |name: &str| {
        let kinds = [".md", ".toml", ".yml", ".yaml", ".nix", ".in"];
        kinds.iter().any(|kind| name.ends_with(kind)) || name.starts_with("scripts/")
    };
    for (name, text) in files.iter().filter(|(name, _)| is_text(name)) {
        let before = ["sidecore-", "sidecore_", "releases/download/v", "sidecore:"];
        for part in before.iter().flat_map(|before| text.split(before).skip(1)) {
            if let Some(found) = leading_version(part) {
                expect(name, Some(found));
            }
        }
    }
    assert!(
        others.is_empty(),
        "not {}:\n{}",
        version(),
        others.join("\n")
    );
    assert!(files["phylo/python/pyproject.toml"].contains("dynamic = [\"version\"]"));
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".pc.in")) {
        assert!(text.contains("\nVersion: @VERSION@\n"), "{name}");
    }
}

#[test]
fn the_program_and_its_pages_say_version_and_commit() {
    let output = sidecore(&["--version"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let mut words = said.split_whitespace();
    assert_eq!(words.next(), Some("sidecore"));
    assert_eq!(words.next(), Some(version()));
    // From an archive of the source there is none.
    if let Some(commit) = words.next() {
        let digits = commit.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
        let digits = digits.expect("a commit in brackets");
        assert!(digits.len() == 12 && digits.bytes().all(|it| it.is_ascii_hexdigit()));
        let git = Command::new("git")
            .current_dir(root())
            .args(["rev-parse", "HEAD"])
            .output();
        if let Ok(head) = git
            && head.status.success()
            && std::env::var_os("SIDECORE_COMMIT").is_none()
        {
            assert!(head.stdout.starts_with(digits.as_bytes()), "{said}");
        }
    }
    assert_eq!(words.next(), None);
    let folder = tempfile::tempdir().unwrap();
    assert!(
        sidecore(&["man", folder.path().to_str().unwrap()])
            .status
            .success()
    );
    for page in ["sidecore.1", "sidecore-block-mount.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(text.contains(version()), "{page}");
    }
}

#[test]
fn every_published_crate_is_complete() {
    let crates = published();
    assert!(crates.len() > 30, "{}", crates.len());
    let mut lacking = Vec::new();
    for (folder, manifest) in &crates {
        for key in ["description", "readme", "keywords", "categories"] {
            if !manifest.contains(&format!("\n{key} = ")) {
                lacking.push(format!("{folder}: {key}"));
            }
        }
        for key in ["license", "repository", "rust-version"] {
            if !manifest.contains(&format!("\n{key}.workspace = true")) {
                lacking.push(format!("{folder}: {key}"));
            }
        }
        if !manifest.contains("\n[package.metadata.docs.rs]\n") {
            lacking.push(format!("{folder}: metadata for the built documentation"));
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = std::fs::read(root().join(folder).join(licence)).ok();
            if own.as_deref() != Some(files()[licence].as_bytes()) {
                lacking.push(format!("{folder}: {licence}"));
            }
        }
    }
    assert!(lacking.is_empty(), "lacking:\n{}", lacking.join("\n"));
}

/// A registry shows a README without the rest of the repository.
#[test]
fn links_of_published_readmes_lead_somewhere() {
    let mut dead = Vec::new();
    let mut checked = 0;
    let pages = published().into_keys().chain(["phylo/python"]);
    for folder in pages {
        for link in links(&files()[&format!("{folder}/README.md")]) {
            let is_remote = link.contains("://") || link.starts_with('#');
            let inside = Path::new(folder).join(link.split('#').next().unwrap());
            if !is_remote && (link.contains("..") || !root().join(inside).exists()) {
                dead.push(format!("{folder}/README.md: {link}"));
            }
        }
    }
    // Links into our own repository, of these and all other pages.
    for (page, text) in files().iter().filter(|(name, _)| name.ends_with(".md")) {
        for link in links(text) {
            let Some(path) = link.strip_prefix(REPOSITORY) else {
                continue;
            };
            checked += 1;
            let parts: Vec<&str> = path.trim_start_matches('/').splitn(3, '/').collect();
            if let ["blob" | "tree", _, path] = parts[..]
                && !root().join(path.split('#').next().unwrap()).exists()
            {
                dead.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    assert!(checked > 20, "only {checked} links into the repository");
}

#[test]
fn the_packages_documents_have_no_dead_link() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("doc");
    let mut command = Command::new("python3");
    command.arg(root().join("packaging/docs.py")).arg(&out);
    succeeded(&command.output().unwrap());
    let mut todo = vec![out];
    let (mut dead, mut checked) = (Vec::new(), 0);
    while let Some(folder) = todo.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            if path.extension().is_none_or(|kind| kind != "md") {
                continue;
            }
            for link in links(&std::fs::read_to_string(&path).unwrap()) {
                let target = link.split('#').next().unwrap();
                if target.is_empty() || link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                checked += 1;
                if !folder.join(target).exists() {
                    dead.push(format!("{}: {link}", path.display()));
                }
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    assert!(checked > 100, "only {checked} links");
}

#[test]
fn linked_libraries_have_the_interface_in_their_names() {
    let libraries = std::env::current_exe().unwrap();
    let names = [
        ("libsidecore.so", format!("libsidecore.so.{}", interface())),
        ("libspe2.so", "libspe2.so.2".to_owned()),
        ("libhmsbeagle.so", "libhmsbeagle.so.1".to_owned()),
        // Loaded by their paths.
        ("libsidecore_z.so", "libsidecore_z.so".to_owned()),
        (
            "libsidecore_net_preload.so",
            "libsidecore_net_preload.so".to_owned(),
        ),
    ];
    for (file, soname) in names {
        let path = libraries.with_file_name(file);
        let Ok(output) = Command::new("readelf").arg("-dW").arg(&path).output() else {
            eprintln!("readelf is missing: the names of libraries are not checked");
            return;
        };
        succeeded(&output);
        let text = String::from_utf8_lossy(&output.stdout);
        let found = text.lines().find(|line| line.contains("SONAME"));
        let expected = format!("[{soname}]");
        assert!(
            found.is_some_and(|line| line.ends_with(&expected)),
            "{file}: {found:?}"
        );
    }
}

/// `cargo binstall` looks for exactly what `scripts/release tarball` makes.
#[test]
fn binstall_names_the_tarball() {
    let manifest = &files()["cli/Cargo.toml"];
    let value = |key: &str| {
        let text = manifest.split(&format!("\n{key} = \"")).nth(1);
        let text = text.and_then(|rest| rest.split('"').next()).expect(key);
        text.replace("{ repo }", REPOSITORY)
            .replace("{ version }", version())
            .replace("{ target-arch }", "x86_64")
            .replace("{ bin }", "sidecore")
    };
    let name = format!("sidecore-{}-x86_64-unknown-linux-musl", version());
    let url = format!(
        "{REPOSITORY}/releases/download/v{}/{name}.tar.gz",
        version()
    );
    assert_eq!(value("pkg-url"), url);
    assert_eq!(value("bin-dir"), format!("{name}/bin/sidecore"));
    let script = &files()["scripts/release"];
    for line in [
        "target=$(uname -m)-unknown-linux-musl",
        "name=sidecore-$version-$target",
        "install -D -m 755 \"$program\" \"$root/bin/sidecore\"",
    ] {
        assert!(script.contains(line), "{line}");
    }
}

/// A folder as a release has it, with a program that prints its version.
fn release(folder: &Path, version: &str, more: &str) {
    let name = format!(
        "sidecore-{version}-{}-unknown-linux-musl",
        std::env::consts::ARCH
    );
    let script = format!(
        "set -eu; mkdir -p w/{name}/bin w/{name}/share/doc/sidecore\n\
         printf '#!/bin/sh\\necho sidecore {version}\\n' >w/{name}/bin/sidecore\n\
         chmod 755 w/{name}/bin/sidecore\n\
         touch w/{name}/share/doc/sidecore/LICENSE-MIT w/{name}/share/doc/sidecore/LICENSE-APACHE\n\
         touch w/{name}/share/doc/sidecore/{more}\n\
         tar -C w -czf {name}.tar.gz {name}; rm -r w\n\
         sha256sum {name}.tar.gz >SHA256SUMS"
    );
    let mut command = Command::new("sh");
    succeeded(
        &command
            .current_dir(folder)
            .args(["-c", &script])
            .output()
            .unwrap(),
    );
}

fn install(shell: &[&str], words: &[&str]) -> Output {
    let mut command = Command::new(shell[0]);
    command
        .args(&shell[1..])
        .arg(root().join("packaging/install.sh"));
    command.args(words).output().unwrap()
}

#[test]
fn the_installer_checks_replaces_and_removes() {
    let mut shells = vec![vec!["sh"], vec!["bash", "--posix"]];
    if Command::new("busybox").arg("true").status().is_ok() {
        shells.push(vec!["busybox", "sh"]);
    }
    for shell in shells {
        let folder = tempfile::tempdir().unwrap();
        let (from, prefix) = (folder.path().join("from"), folder.path().join("a prefix"));
        std::fs::create_dir(&from).unwrap();
        // Empty folders of a system are not the installer's to remove.
        std::fs::create_dir_all(prefix.join("share/man")).unwrap();
        let words = [
            "--from",
            from.to_str().unwrap(),
            "--prefix",
            prefix.to_str().unwrap(),
        ];
        release(&from, "1.0.0", "first");
        succeeded(&install(&shell, &words));
        let program = prefix.join("bin/sidecore");
        let says = || String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
        assert_eq!(says(), "sidecore 1.0.0\n");

        // A newer version takes the older one's files away.
        std::fs::remove_dir_all(&from).unwrap();
        std::fs::create_dir(&from).unwrap();
        release(&from, "1.1.0", "second");
        let url = format!("file://{}", from.display());
        succeeded(&install(&shell, &["--from", &url, words[2], words[3]]));
        assert_eq!(says(), "sidecore 1.1.0\n");
        assert!(!prefix.join("share/doc/sidecore/first").exists());
        assert!(prefix.join("share/doc/sidecore/second").exists());

        // A version that is not there, and an archive that was changed, leave all as it is.
        let refused = install(&shell, &[&words[..], &["--version", "9.9.9"]].concat());
        assert!(!refused.status.success());
        let archive = from.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let archive = archive.filter(|path| path.extension().is_some_and(|it| it == "gz"));
        for path in archive {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.push(0);
            std::fs::write(&path, bytes).unwrap();
        }
        let refused = install(&shell, &words);
        assert!(!refused.status.success());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("is damaged: its SHA-256"), "{said}");
        assert_eq!(says(), "sidecore 1.1.0\n");

        // What others put below the prefix stays.
        std::fs::write(prefix.join("bin/other"), "").unwrap();
        succeeded(&install(&shell, &["--uninstall", words[2], words[3]]));
        let names = |folder: &Path| {
            let entries = folder.read_dir().unwrap();
            let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&prefix), ["bin", "share"]);
        assert_eq!(names(&prefix.join("share")), ["man"]);
        assert!(prefix.join("bin/other").exists() && !program.exists());
        assert!(
            !install(&shell, &["--uninstall", words[2], words[3]])
                .status
                .success()
        );
    }
}

/// The image and the bill of materials are the same in every run, and hold what they should.
#[test]
fn image_and_bill_of_materials_are_complete_and_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    release(folder.path(), version(), "notes");
    let python = |script: &str, words: &[&str]| {
        let mut command = Command::new("python3");
        command
            .current_dir(root())
            .arg(root().join("packaging").join(script))
            .args(words);
        let output = command.env("SOURCE_DATE_EPOCH", "1").output().unwrap();
        succeeded(&output);
        let path = String::from_utf8(output.stdout).unwrap();
        std::fs::read(path.trim_end()).unwrap()
    };
    let image = || python("image.py", &[folder.path().to_str().unwrap(), version()]);
    let first = image();
    assert_eq!(first, image());
    let unpacked = folder.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let path = folder
        .path()
        .join(format!("sidecore-{}-oci.tar", version()));
    let mut tar = Command::new("tar");
    succeeded(
        &tar.arg("-xf")
            .arg(path)
            .arg("-C")
            .arg(&unpacked)
            .output()
            .unwrap(),
    );
    // From the index over the manifest to the layer, each named by its digest.
    let blob = |descriptor: &serde_json::Value| {
        let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
        let bytes = std::fs::read(unpacked.join("blobs").join(digest)).unwrap();
        assert_eq!(descriptor["size"].as_u64(), Some(bytes.len() as u64));
        bytes
    };
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    let index = json(&std::fs::read(unpacked.join("index.json")).unwrap());
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/sidecore");
    std::fs::write(unpacked.join("layer"), blob(&manifest["layers"][0])).unwrap();
    let mut tar = Command::new("tar");
    let listed = tar
        .arg("-tzf")
        .arg(unpacked.join("layer"))
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.lines().any(|line| line == "usr/bin/sidecore"),
        "{listed}"
    );

    let path = folder.path().join("bill.json");
    let bill = || python("sbom.py", &[path.to_str().unwrap()]);
    let first = bill();
    assert_eq!(first, bill());
    let bill = json(&first);
    assert_eq!(bill["metadata"]["component"]["version"], version());
    let parts = bill["components"].as_array().unwrap();
    let has = |name: &str| parts.iter().any(|part| part["name"] == name);
    assert!(has("sidecore-block") && has("rustls") && has("zstd-sys"));
    // Of tests, of peers, of builds, of the compiler.
    assert!(!has("proptest") && !has("rayon") && !has("cc") && !has("serde_derive"));
}

#[test]
fn workflows_call_scripts_and_have_few_rights() {
    let is_workflow = |name: &str| name.starts_with(".github/workflows/");
    let workflows: Vec<_> = files()
        .iter()
        .filter(|(name, _)| is_workflow(name))
        .collect();
    assert!(workflows.len() >= 2);
    for (name, text) in workflows {
        assert!(
            text.contains("\npermissions:\n  contents: read\n"),
            "{name}"
        );
        assert!(!text.contains("pull_request_target"), "{name}");
        for line in text.lines().filter(|line| line.contains("uses: ")) {
            let reference = line.split_once('@').map_or("", |(_, it)| it);
            let reference = reference.split_whitespace().next().unwrap_or_default();
            let is_tag = reference
                .strip_prefix('v')
                .is_some_and(|it| it.parse::<u8>().is_ok());
            let is_commit = reference.len() == 40;
            assert!(is_tag || is_commit, "{name}: {line} is not pinned");
        }
    }
    let release = &files()[".github/workflows/release.yml"];
    for artefact in [
        "check", "deb", "rpm", "wheel", "tarball", "image", "sbom", "sums",
    ] {
        assert!(
            release.contains(&format!("scripts/release {artefact}")),
            "{artefact}"
        );
        let script = &files()["scripts/release"];
        assert!(script.contains(&format!("\n  {artefact}) ")), "{artefact}");
    }
    let ci = &files()[".github/workflows/ci.yml"];
    for called in [".ci/run", "scripts/check-ui", "scripts/check-ui --day"] {
        assert!(ci.contains(&format!("{called}\n")), "{called}");
    }
    match Command::new("actionlint").current_dir(root()).output() {
        Ok(output) => succeeded(&output),
        Err(_) => eprintln!("actionlint is missing: workflows are not checked (docs/release.md)"),
    }
}

/// It takes a whole version or a requirement, and no number of a series.
#[test]
fn workflows_install_versions_that_cargo_takes() {
    let workflows = files().iter();
    for (name, text) in workflows.filter(|(name, _)| name.starts_with(".github/workflows/")) {
        for line in text.lines().filter(|line| line.contains("cargo install ")) {
            let asked = line.split_once('@').map_or("^", |(_, it)| it);
            let is_taken = asked.starts_with(['^', '~', '=']) || leading_version(asked).is_some();
            assert!(is_taken, "{name}: {line}");
        }
    }
}

/// The table of mounts has no line for an attached image, nor for one on a loop device.
#[test]
fn a_package_stays_while_an_image_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sidecore");
    for way in ["mount", "attach"] {
        let script = format!("#!/bin/sh\necho '      \"way\": \"{way}\",'\n");
        std::fs::write(&program, script).unwrap();
        succeeded(
            &Command::new("chmod")
                .arg("755")
                .arg(&program)
                .output()
                .unwrap(),
        );
        let prerm = |word: &str| {
            let mut command = Command::new("sh");
            command
                .arg(root().join("packaging/scripts/prerm"))
                .arg(word);
            let path = format!("{}:/usr/bin:/bin", folder.path().display());
            command.env("PATH", path).output().unwrap()
        };
        for (word, status) in [("remove", 1), ("0", 1), ("upgrade", 0), ("1", 0)] {
            assert_eq!(prerm(word).status.code(), Some(status), "{way} {word}");
        }
    }
}

#[test]
fn scripts_of_a_release_are_clean() {
    let mut command = Command::new("shellcheck");
    command
        .current_dir(root())
        .args(["-x", "--severity=warning"]);
    command.args(["packaging/install.sh", "packaging/bioconda/build.sh"]);
    command.args([
        "scripts/release",
        "scripts/package",
        "scripts/check-reproducible",
    ]);
    command.args(["packaging/scripts/prerm", "packaging/scripts/postrm"]);
    match command.output() {
        Ok(output) => succeeded(&output),
        Err(_) => eprintln!("shellcheck is missing: scripts are not checked by it"),
    }
    match Command::new("nix-instantiate").arg("--version").output() {
        Ok(_) => {
            for file in ["flake.nix", "default.nix", "package.nix"] {
                let mut parse = Command::new("nix-instantiate");
                let path = root().join("packaging/nix").join(file);
                succeeded(&parse.arg("--parse").arg(path).output().unwrap());
            }
        }
        Err(_) => eprintln!("nix-instantiate is missing: no Nix file is parsed (docs/release.md)"),
    }
}

fn succeeded(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}: {said}{printed}",
        output.status
    );
}
