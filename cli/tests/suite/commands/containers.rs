//! Layers of an image of containers, from a registry that is a thread here.
//!
//! Must stay true: everything that a test starts ends with it, also when it fails.

mod registry;

use crate::commands::services::{guarded, kill, server_of};
use crate::commands::{inputs, services};
use registry::{registry, registry_of};
use sidecore_oci::layer::sha256_of;
use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_layer_is_indexed_pushed_and_mounted_by_its_parts() {
    let folder = inputs::folder();
    let (address, digest) = registry();
    let image = format!("oci://{address}/app:v1");
    let ok = services::ok;
    let said = ok(&format!(
        "block index {image} --layers made-layers --push --json"
    ));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["layers"][0]["digest"], format!("sha256:{digest}"));
    assert_eq!(said["layers"][0]["is_lazy"], true);
    assert!(
        said["pushed"].as_str().unwrap().starts_with("sha256:"),
        "{said}"
    );
    // On another machine: its own folder, the pushed index.
    std::fs::create_dir_all(folder.join("on-layer")).unwrap();
    let undo = services::Undo("block umount on-layer".to_owned());
    ok(&format!(
        "block layer {image} on-layer --layers other-layers --trust-index --rate 64KiB"
    ));
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("on-layer/etc/hello"), b"hello from a layer\n");
    assert_eq!(read("on-layer/noise"), read("layer/noise"));
    assert!(
        !folder
            .join("other-layers")
            .join(&digest)
            .join("complete")
            .exists()
    );
    ok("block umount on-layer");
    drop(undo);
    // Without that trust, the layer is fetched as a whole first.
    ok(&format!(
        "block layer {image} on-layer --layers third-layers"
    ));
    let _undo = services::Undo("block umount on-layer".to_owned());
    assert_eq!(read("on-layer/noise"), read("layer/noise"));
    assert!(
        folder
            .join("third-layers")
            .join(&digest)
            .join("complete")
            .exists()
    );
}

#[test]
fn a_registry_is_read_from_the_mirrors_that_hosts_toml_names() {
    let folder = inputs::folder();
    let (address, digest, _) = registry_of("mirrored");
    let described = folder.join("certs.d/registry.example");
    std::fs::create_dir_all(&described).unwrap();
    let run = |hosts: &str| {
        std::fs::write(described.join("hosts.toml"), hosts).unwrap();
        let words = "block index oci://registry.example/app:v1 --layers mirrored-layers --json";
        let mut command = inputs::command(folder, words);
        let command = command.env("SIDECORE_HOSTS_DIR", folder.join("certs.d"));
        command.output().unwrap()
    };
    // The first mirror answers nothing.
    let hosts = format!(
        "server = \"http://127.0.0.1:1\"\n[host.\"http://127.0.0.1:1\"]\n\
         [host.\"http://{address}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    );
    let output = run(&hosts);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        folder
            .join("mirrored-layers")
            .join(&digest)
            .join("complete")
            .exists()
    );
    let output = run("[host.\"ftp://mirror\"]\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("hosts.toml"), "{said}");
}

#[test]
fn layers_become_signed_images_next_to_the_original() {
    let folder = inputs::folder();
    let (address, digest, shelf) = registry_of("converted");
    let openssl = |words: &str| tool("openssl", words);
    openssl("genpkey -algorithm ed25519 -out layers.pem");
    openssl("pkey -in layers.pem -pubout -out layers.pub");
    let image = format!("oci://{address}/app");
    let said = services::ok(&format!(
        "block pack {image}:v1 -o {image}:fast --sign layers.pem --json"
    ));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["layers"][0]["digest"], format!("sha256:{digest}"));
    // The index has the original first, and the artifact refers to it.
    let all = Arc::clone(&shelf);
    let shelf = shelf.lock().unwrap();
    let document = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&shelf[&format!("/v2/app/manifests/{path}")].1).unwrap()
    };
    let index = document("fast");
    assert_eq!(index["manifests"][0]["digest"], said["original"]);
    assert_eq!(index["manifests"][1]["digest"], said["converted"]);
    let images = document(said["converted"].as_str().unwrap());
    assert_eq!(images["layers"][0]["digest"], said["layers"][0]["image"]);
    let kind = "application/vnd.sidecore.layer.image.v1";
    assert_eq!(images["layers"][0]["mediaType"], kind);
    let referrers = document(&said["original"].as_str().unwrap().replace(':', "-"));
    assert_eq!(referrers["manifests"][0]["artifactType"], kind);
    let artifact = referrers["manifests"][0]["digest"]
        .as_str()
        .unwrap()
        .to_owned();
    drop(shelf);
    // It is mounted as the snapshotter does, outlives a kill, and is checked by its signature.
    std::fs::create_dir_all(folder.join("on-fast")).unwrap();
    openssl("genpkey -algorithm ed25519 -out other.pem");
    openssl("pkey -in other.pem -pubout -out other.pub");
    let mount = format!("block mount {image}@{artifact} on-fast --keep --fs erofs");
    let refused = inputs::sidecore(&format!("{mount} --verify-key other.pub"));
    assert_eq!(refused.status.code(), Some(2));
    services::ok(&format!("{mount} --verify-key layers.pub"));
    let undo = services::Undo("block umount --force on-fast".to_owned());
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("on-fast/etc/hello"), read("converted/etc/hello"));
    kill(guarded("on-fast").0);
    assert_eq!(read("on-fast/noise"), read("converted/noise"));
    services::ok("block umount on-fast");
    drop(undo);
    // The same from a folder in OCI's layout gives the same image.
    let layout = folder.join("layout");
    std::fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let original = said["original"].as_str().unwrap();
    for (path, (_, bytes)) in all.lock().unwrap().iter() {
        if let Some((_, digits)) = path.rsplit_once("/sha256:") {
            std::fs::write(layout.join("blobs/sha256").join(digits), bytes).unwrap();
        }
    }
    let index = serde_json::json!({ "manifests": [{ "digest": original, "size": 1 }] });
    std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let again = services::ok(&format!(
        "block pack layout -o {image}:again --sign layers.pem --json"
    ));
    let again: serde_json::Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["layers"], said["layers"]);
}

/// The layers that an image in files has, by an index of each.
fn indexed(name: &str, layers: &str) -> serde_json::Value {
    let said = services::ok(&format!("block index {name} --layers {layers} --json"));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    said["layers"].clone()
}

#[test]
fn archives_and_layouts_are_images_of_containers_too() {
    let folder = inputs::folder();
    let (address, _, shelf) = registry_of("archived");
    let tar = |words: &str| tool("tar", words);
    tar("-C archived -cf saved-layer.tar .");
    // As `docker save` writes it: the second image's layer is a link to the first one's.
    let saved = folder.join("saved");
    std::fs::create_dir_all(saved.join("one")).unwrap();
    std::fs::create_dir_all(saved.join("two")).unwrap();
    std::fs::rename(folder.join("saved-layer.tar"), saved.join("one/layer.tar")).unwrap();
    std::os::unix::fs::symlink("../one/layer.tar", saved.join("two/layer.tar")).unwrap();
    std::fs::write(
        saved.join("c.json"),
        r#"{"architecture":"amd64","os":"linux"}"#,
    )
    .unwrap();
    let list = serde_json::json!([
        { "Config": "c.json", "RepoTags": ["a:1"], "Layers": ["one/layer.tar"] },
        { "Config": "c.json", "RepoTags": ["b:1"], "Layers": ["two/layer.tar"] },
    ]);
    std::fs::write(saved.join("manifest.json"), list.to_string()).unwrap();
    tar("-C saved -cf saved.tar .");
    let one = indexed("docker-archive:saved.tar:b:1", "archived-layers");
    assert_eq!(one[0]["is_lazy"], true);
    let image = format!("oci://{address}/app");
    let pack = |from: &str, tag: &str| {
        let said = services::ok(&format!("block pack {from} -o {image}:{tag} --json"));
        serde_json::from_str::<serde_json::Value>(&said).unwrap()
    };
    let packed = pack("docker-archive:saved.tar:a:1", "saved");
    assert_eq!(packed["layers"][0]["digest"], one[0]["digest"]);
    assert!(packed["layers"][0]["image"].is_string(), "{packed}");
    let refused = inputs::sidecore(&format!("block pack docker-archive:saved.tar -o {image}:x"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("a:1, b:1"), "{said}");
    // The registry's image as a layout: a folder with a name, and an archive.
    let layout = folder.join("as-layout");
    std::fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let mut manifest = Vec::new();
    for (path, (_, bytes)) in shelf.lock().unwrap().iter() {
        std::fs::write(layout.join("blobs/sha256").join(sha256_of(bytes)), bytes).unwrap();
        if path == "/v2/app/manifests/v1" {
            manifest.clone_from(bytes);
        }
    }
    let index = serde_json::json!({ "manifests": [{
        "digest": format!("sha256:{}", sha256_of(&manifest)), "size": manifest.len(),
        "annotations": { "org.opencontainers.image.ref.name": "v1" },
    }] });
    std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    std::fs::write(layout.join("oci-layout"), "{}").unwrap();
    tar("-C as-layout -cf layout.tar .");
    let named = indexed("oci:as-layout:v1", "archived-layers");
    assert_eq!(indexed("as-layout", "more-layers"), named);
    assert_eq!(indexed("oci-archive:layout.tar", "more-layers"), named);
    assert_eq!(
        pack("oci-archive:layout.tar:v1", "layout")["layers"][0]["digest"],
        named[0]["digest"]
    );
    let refused = inputs::sidecore("block index oci:as-layout --push");
    assert_eq!(refused.status.code(), Some(2));
}

/// A call of the snapshotter by a client that is not ours; its status, and the answer's bytes.
fn call(method: &str, fields: &[(u8, &[u8])]) -> (String, Vec<u8>) {
    let folder = inputs::folder();
    let mut message = Vec::new();
    for (tag, bytes) in fields {
        message.push(tag << 3 | 2);
        // Lengths below 16,384.
        let length = u8::try_from(bytes.len() & 127).unwrap();
        message.extend([length | 128, u8::try_from(bytes.len() >> 7).unwrap()]);
        message.extend_from_slice(bytes);
    }
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    std::fs::write(folder.join("call"), body).unwrap();
    let url = "http://localhost/containerd.services.snapshots.v1.Snapshots";
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--http2-prior-knowledge",
        "--unix-socket",
        "fast.sock",
    ]);
    curl.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    curl.args(["--data-binary", "@call", "-D", "heads", "-o", "answer"]);
    let done = curl
        .arg(format!("{url}/{method}"))
        .current_dir(folder)
        .output();
    let done = done.unwrap();
    assert!(done.status.success(), "{done:?}");
    let heads = std::fs::read_to_string(folder.join("heads")).unwrap();
    let mut heads = heads.lines().filter_map(|it| it.split_once(": "));
    let status = heads.find(|it| it.0 == "grpc-status").expect("a status").1;
    let answer = std::fs::read(folder.join("answer")).unwrap_or_default();
    (status.trim().to_owned(), answer)
}

/// As containerd asks for a layer of the image `app:fast`.
fn prepare(address: &str, digest: &str, manifest: &str, name: &str) -> String {
    let label = |key: &str, value: &str| {
        let mut entry = Vec::new();
        for (tag, text) in [(10, key), (18, value)] {
            entry.extend([tag, u8::try_from(text.len()).unwrap()]);
            entry.extend_from_slice(text.as_bytes());
        }
        entry
    };
    let labels = [
        label("containerd.io/snapshot.ref", name),
        label(
            "containerd.io/snapshot/cri.layer-digest",
            &format!("sha256:{digest}"),
        ),
        label(
            "containerd.io/snapshot/cri.image-ref",
            &format!("{address}/app:fast"),
        ),
        label("containerd.io/snapshot/cri.manifest-digest", manifest),
    ];
    let mut fields: Vec<(u8, &[u8])> = vec![(2, b"key")];
    fields.extend(labels.iter().map(|label| (4, &label[..])));
    call("Prepare", &fields).0
}

#[test]
fn a_converted_layer_is_a_snapshot_if_its_signature_is_right() {
    let folder = inputs::folder();
    let (address, digest, _) = registry_of("fast-tree");
    for name in ["fast", "else"] {
        let openssl = |words: String| tool("openssl", &words);
        openssl(format!("genpkey -algorithm ed25519 -out {name}.pem"));
        openssl(format!("pkey -in {name}.pem -pubout -out {name}.pub"));
    }
    let image = format!("oci://{address}/app");
    let said = services::ok(&format!(
        "block pack {image}:v1 -o {image}:fast --sign fast.pem --json"
    ));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let manifest = said["original"].as_str().unwrap();
    let read = |path: &str| std::fs::read(folder.join(path)).unwrap();
    // Whether the layer itself had to be fetched, and how it is served.
    for (key, is_converted) in [("else", false), ("fast", true)] {
        let root = format!("fast-root-{key}");
        let words =
            format!("snapshotter --address unix:fast.sock --root {root} --verify-key {key}.pub");
        let server = services::Service::start(&words, "ready");
        // Already there: containerd unpacks nothing.
        assert_eq!(prepare(&address, &digest, manifest, "chain"), "6");
        let files = format!("{root}/snapshots/1/fs");
        let undo = services::Undo(format!("block umount --force {files}"));
        assert_eq!(
            read(&format!("{files}/etc/hello")),
            read("fast-tree/etc/hello")
        );
        let whole = folder
            .join(&root)
            .join("layers")
            .join(&digest)
            .join("complete");
        assert_eq!(whole.exists(), !is_converted);
        let (status, mounts) = call("View", &[(2, b"view"), (3, b"chain")]);
        assert_eq!(status, "0");
        assert!(String::from_utf8_lossy(&mounts).contains(&files), "{files}");
        if is_converted {
            // Its server is killed, and the snapshotter starts again.
            kill(guarded(&files).0);
            server.end();
            let server = services::Service::start(&words, "ready");
            assert_eq!(read(&format!("{files}/noise")), read("fast-tree/noise"));
            assert_eq!(call("Remove", &[(2, b"view")]).0, "0");
            assert_eq!(call("Remove", &[(2, b"chain")]).0, "0");
            assert!(!folder.join(&files).exists());
            server.end();
        } else {
            assert_eq!(call("Remove", &[(2, b"view")]).0, "0");
            assert_eq!(call("Remove", &[(2, b"chain")]).0, "0");
            server.end();
        }
        drop(undo);
    }
}

/// A mount that ends with its test, also when that fails.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // It is gone already where the test has passed.
        let mut umount = Command::new("umount");
        umount.arg("-l").arg(&self.0).output().ok();
    }
}

/// The layers as c/storage asks for them: an image's name in base64, a digest, three files, and two
/// refused calls that count users.
#[test]
fn podman_and_its_kind_find_layers_in_a_store() {
    let folder = inputs::folder();
    let (address, digest, shelf) = registry_of("stored");
    let words =
        "snapshotter --address unix:stored.sock --root stored-root --layer-store layer-store";
    let server = services::Service::start(words, "ready");
    let _undo = services::Undo(format!(
        "block umount --force stored-root/store/{digest}/fs"
    ));
    let _mounted = Mounted(folder.join("layer-store"));
    let name = format!("printf %s {address}/app:v1 | base64 -w0");
    let name = Command::new("sh").args(["-c", &name]).output().unwrap();
    let image = folder
        .join("layer-store")
        .join(String::from_utf8(name.stdout).unwrap());
    let layer = image.join(format!("sha256:{digest}"));
    let missing = |error: std::io::Error| assert_eq!(error.raw_os_error(), Some(2), "{error}");
    missing(std::fs::metadata(image.join(format!("sha256:{}", "0".repeat(64)))).unwrap_err());
    missing(std::fs::metadata(folder.join("layer-store/bm90IGFuIGltYWdl")).unwrap_err());
    let hello = || std::fs::read(layer.join("diff/etc/hello"));
    assert_eq!(hello().unwrap(), b"hello from a layer\n");
    let blob = std::fs::read(layer.join("blob")).unwrap();
    assert_eq!(sha256_of(&blob), digest);
    let info: serde_json::Value =
        serde_json::from_slice(&std::fs::read(layer.join("info")).unwrap()).unwrap();
    assert_eq!(info["compressed-diff-digest"], format!("sha256:{digest}"));
    assert_eq!(info["compressed-size"], blob.len());
    let tar = Command::new("gzip")
        .args(["-dc", "stored.tar.gz"])
        .current_dir(folder)
        .output();
    let diff = sha256_of(&tar.unwrap().stdout);
    assert_eq!(info["diff-digest"], format!("sha256:{diff}"));
    let begin_use = || missing(std::fs::File::create(layer.join("use")).unwrap_err());
    let end_use = || missing(std::fs::remove_dir(&layer).unwrap_err());
    let is_mounted = || {
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
        table.contains(&format!("stored-root/store/{digest}/fs"))
    };
    begin_use();
    begin_use();
    end_use();
    assert!(is_mounted());
    end_use();
    assert!(!is_mounted());
    // Its link leads to the files again, also for a name that the kernel still has.
    assert_eq!(hello().unwrap(), b"hello from a layer\n");
    begin_use();
    // The users of a layer are remembered, and it needs no registry any more.
    server.end();
    assert!(!layer.exists());
    let server = services::Service::start(words, "ready");
    shelf.lock().unwrap().clear();
    assert_eq!(hello().unwrap(), b"hello from a layer\n");
    // Root's: a look-up makes requests to whichever server it names.
    let other = ["--reuid=65534", "--clear-groups", "ls"];
    let other = Command::new("setpriv").args(other).arg(&layer).output();
    assert!(!other.unwrap().status.success());
    end_use();
    assert!(!is_mounted());
    assert!(std::fs::write(image.join("new"), "").is_err());
    server.end();
}

/// Reads a file of a layer again and again, from the server and not from the page cache.
fn read_on(path: &std::path::Path, expected: &[u8], stop: &AtomicBool) -> usize {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut file = std::fs::File::open(path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("no read fails");
        assert!(bytes == expected, "wrong bytes in round {rounds}");
        rounds += 1;
    }
    rounds
}

#[test]
fn readers_of_a_layer_see_no_error_when_its_server_or_keepers_are_killed() {
    let folder = inputs::folder();
    let (address, digest, _) = registry_of("kept-tree");
    let image = format!("oci://{address}/app:v1");
    services::ok(&format!(
        "block index {image} --layers kept-layers --push --json"
    ));
    std::fs::remove_file(folder.join("kept-layers").join(&digest).join("complete")).unwrap();
    std::fs::create_dir_all(folder.join("on-kept")).unwrap();
    let undo = services::Undo("block umount --force on-kept".to_owned());
    services::ok(&format!(
        "block layer {image} on-kept --layers kept-layers --rate 64KiB"
    ));
    let expected = std::fs::read(folder.join("kept-tree/noise")).unwrap();
    let stop = AtomicBool::new(false);
    let path = folder.join("on-kept/noise");
    let seed = std::process::id();
    std::thread::scope(|scope| {
        // Also where this thread panics.
        let _stop = Stop(&stop);
        let readers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| read_on(&path, &expected, &stop)))
            .collect();
        for round in 0..KILLS {
            let (server, keepers) = guarded("on-kept");
            let pause = (seed.wrapping_mul(round + 1).wrapping_mul(2_654_435_761)) >> 26;
            std::thread::sleep(Duration::from_millis(pause.into()));
            // Any one, and any two at once.
            let victims = match round % 4 {
                0 => vec![server],
                1 => vec![keepers[0], keepers[1]],
                2 => vec![server, keepers[0]],
                _ => vec![keepers[1], server],
            };
            for victim in victims {
                kill(victim);
            }
            let is_new = || round % 4 == 1 || server_of("on-kept").is_some_and(|it| it != server);
            let waited = (0..600).find(|tries| {
                std::thread::sleep(Duration::from_millis(if *tries == 0 { 0 } else { 50 }));
                is_new()
            });
            assert!(waited.is_some(), "seed {seed}, kill {round}: no new server");
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    let (server, keepers) = guarded("on-kept");
    services::ok("block umount on-kept");
    drop(undo);
    // All end with the mount.
    let is_gone = |pid: &u32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
    let gone = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        is_gone(&server) && keepers.iter().all(is_gone)
    });
    assert!(gone, "{server} or {keepers:?} is left");
}

/// A container's reads do not depend on this machine's disk.
#[test]
fn a_layer_is_read_while_the_disk_is_full() {
    let folder = inputs::folder();
    let (address, _, _) = registry_of("full-tree");
    let image = format!("oci://{address}/app:v1");
    services::ok(&format!(
        "block index {image} --layers full-made --push --json"
    ));
    for name in ["on-full", "full-layers"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    // Less than the one file of the layer.
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=2m", "none"]);
    let status = mount.arg(folder.join("full-layers")).status();
    assert!(status.unwrap().success());
    let _disk = Mounted(folder.join("full-layers"));
    services::ok(&format!(
        "block layer {image} on-full --layers full-layers --trust-index --rate 64KiB"
    ));
    let _undo = services::Undo("block umount on-full".to_owned());
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(read("on-full/noise") == read("full-tree/noise"));
    assert_eq!(read("on-full/etc/hello"), b"hello from a layer\n");
}

/// Ends the readers.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills of servers and keepers.
const KILLS: u32 = 8;

#[test]
fn the_snapshotter_says_ready_and_ends() {
    let words = "snapshotter --address unix:snapshots.sock --root snapshots";
    let server = services::Service::start(words, "ready");
    assert!(inputs::folder().join("snapshots.sock").exists());
    let second = inputs::sidecore("snapshotter --address unix:other.sock --root snapshots");
    assert_eq!(second.status.code(), Some(2));
    server.end();
    assert!(!inputs::folder().join("snapshots.sock").exists());
}

/// Runs another program in the folder of inputs; it must end well.
fn tool(program: &str, words: &str) {
    let mut command = Command::new(program);
    let command = command.args(words.split(' '));
    let status = command.current_dir(inputs::folder()).status();
    assert!(status.unwrap().success(), "{program} {words}");
}
