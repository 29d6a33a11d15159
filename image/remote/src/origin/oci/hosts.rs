//! Servers of a registry's name: mirrors, and their certificates, as containerd's `hosts.toml`
//! names them.
//!
//! Why here: a machine whose containers come from a mirror, or from a registry with a certificate
//! of its own, is set up for that already.
//!
//! The first of a few folders with a folder for the registry counts (`SIDECORE_HOSTS_DIR`
//! replaces them); `_default` in it stands for registries without one. Its `hosts.toml` is read;
//! without that file, its `*.crt` are authorities, as docker has them.
//!
//! Must stay true: servers are asked in the file's order and the registry itself last; a file that
//! cannot be understood is an error, since a mirror may be there for a reason.
//! Source: containerd, its page on the configuration of registries.

use super::super::Fault;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A server that has a registry's repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its interface's root, without a slash at its end (`https://mirror.example/v2`).
    pub root: String,
    /// It has manifests by their tags.
    pub resolves: bool,
    /// It takes what is pushed.
    pub pushes: bool,
    /// Files of authorities that it is checked by, next to the system's.
    pub authorities: Vec<PathBuf>,
    /// Files of this client's certificate and its key.
    pub client: Vec<PathBuf>,
    /// Its certificate is not checked.
    pub is_unchecked: bool,
    /// Headers of each request to it.
    pub headers: HeaderMap,
    /// True for another server than the registry: each request to it names the registry.
    pub is_mirror: bool,
}

/// `hosts.toml`.
#[derive(Default, Deserialize)]
struct File {
    server: Option<String>,
    #[serde(default)]
    host: HashMap<Spanned<String>, Settings>,
    #[serde(flatten)]
    own: Settings,
}

#[derive(Default, Deserialize)]
struct Settings {
    capabilities: Option<Vec<String>>,
    #[serde(default)]
    ca: Words,
    client: Option<Pairs>,
    #[serde(default)]
    skip_verify: bool,
    #[serde(default)]
    override_path: bool,
    #[serde(default)]
    header: HashMap<String, Words>,
}

/// A word, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Many(Vec<String>),
}

/// A file, a certificate and its key, or several of those.
#[derive(Deserialize)]
#[serde(untagged)]
enum Pairs {
    One(String),
    Many(Vec<Words>),
}

impl Default for Words {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Words {
    fn all(&self) -> &[String] {
        match self {
            Self::One(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }
}

impl Host {
    /// A registry's own server.
    fn of_registry(registry: &str) -> Self {
        let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
        // As in other clients: a registry on this machine has no certificate.
        let scheme = match host {
            "localhost" | "127.0.0.1" | "[::1]" => "http",
            _ => "https",
        };
        let place = match registry {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        Self {
            root: format!("{scheme}://{place}/v2"),
            resolves: true,
            pushes: true,
            authorities: Vec::new(),
            client: Vec::new(),
            is_unchecked: false,
            headers: HeaderMap::new(),
            is_mirror: false,
        }
    }

    /// The servers of a registry, in the order in which they are asked.
    ///
    /// # Errors
    /// A file that names them cannot be understood.
    pub(crate) fn all(registry: &str) -> Result<Vec<Self>, Fault> {
        match folder_of(registry) {
            Some(folder) => Self::of_folder(&folder, registry),
            None => Ok(vec![Self::of_registry(registry)]),
        }
    }

    fn of_folder(folder: &Path, registry: &str) -> Result<Vec<Self>, Fault> {
        let path = folder.join("hosts.toml");
        let failed = |reason: String| Fault::Final(format!("{}: {reason}", path.display()));
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::read(&text, folder, registry).map_err(failed),
            // Not without what it may say: a mirror may be there for a reason.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error.to_string())),
            Err(_) => {
                let mut own = Self::of_registry(registry);
                let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
                let files = entries.map(|entry| entry.path());
                let is_authority = |path: &PathBuf| path.extension().is_some_and(|it| it == "crt");
                own.authorities = files.filter(is_authority).collect();
                own.authorities.sort();
                Ok(vec![own])
            }
        }
    }

    /// The servers that the text of `hosts.toml` in `folder` names for a registry.
    ///
    /// # Errors
    /// The reason why it cannot be understood.
    pub fn read(text: &str, folder: &Path, registry: &str) -> Result<Vec<Self>, String> {
        if text.len() > FILE_BYTES_MAX {
            return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
        }
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let mut named: Vec<_> = file.host.iter().collect();
        // The order of the file is the order of attempts.
        named.sort_by_key(|(name, _)| name.span().start);
        let mut hosts = Vec::new();
        for (name, settings) in named {
            let url = name.get_ref();
            let mut host = settings.host(url, folder, registry)?;
            host.is_mirror = true;
            if settings.may("pull") {
                hosts.push(host);
            }
        }
        let own = Self::of_registry(registry);
        let mut last = match &file.server {
            Some(url) => file.own.host(url, folder, registry)?,
            None => {
                let url = own.root.trim_end_matches("/v2");
                file.own.host(url, folder, registry)?
            }
        };
        last.is_mirror = last.root != own.root;
        hosts.push(last);
        Ok(hosts)
    }
}

impl Settings {
    fn may(&self, capability: &str) -> bool {
        let named = self.capabilities.as_ref();
        named.is_none_or(|all| all.iter().any(|it| it == capability))
    }

    fn host(&self, url: &str, folder: &Path, registry: &str) -> Result<Host, String> {
        let url = match url.contains("://") {
            true => url.to_owned(),
            false => format!("https://{url}"),
        };
        let rest = url
            .strip_prefix("https://")
            .or_else(|| url.strip_prefix("http://"));
        // A password in a file that all may read is refused, and a query has no meaning here.
        if rest.is_none_or(|it| it.is_empty() || it.contains(['@', '?', '#', ' '])) {
            return Err(format!(
                "{registry}: a server is https:// or http:// and its name"
            ));
        }
        let root = url.trim_end_matches('/');
        let root = match self.override_path || root.ends_with("/v2") {
            true => root.to_owned(),
            false => format!("{root}/v2"),
        };
        let mut headers = HeaderMap::new();
        for (name, values) in &self.header {
            let bad = || format!("{name} is no header");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            for value in values.all() {
                let value = HeaderValue::from_str(value).map_err(|_| bad())?;
                headers.append(name.clone(), value);
            }
        }
        let path = |it: &String| folder.join(it);
        let client = match &self.client {
            None => Vec::new(),
            Some(Pairs::One(file)) => vec![path(file)],
            // containerd tries each pair; the first one is taken.
            Some(Pairs::Many(pairs)) => pairs
                .iter()
                .take(1)
                .flat_map(|pair| pair.all().iter().map(path))
                .collect(),
        };
        Ok(Host {
            root,
            resolves: self.may("resolve"),
            pushes: self.may("push"),
            authorities: self.ca.all().iter().map(path).collect(),
            client,
            is_unchecked: self.skip_verify,
            headers,
            is_mirror: false,
        })
    }
}

/// The folder that describes a registry.
fn folder_of(registry: &str) -> Option<PathBuf> {
    let given = std::env::var_os("SIDECORE_HOSTS_DIR").map(PathBuf::from);
    let own = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))
        .map(|it| it.join("containerd/certs.d"));
    let folders = match given {
        Some(given) => vec![given],
        None => (own.into_iter())
            .chain(FOLDERS.map(PathBuf::from))
            .collect(),
    };
    // A name without separators, as `is_path` has it; `.` and `..` lead elsewhere.
    let names = [registry, "_default"];
    let is_name = !registry.trim_matches('.').is_empty();
    let mut places = folders
        .iter()
        .flat_map(|folder| names.map(|name| folder.join(name)));
    places.find(|it| is_name && it.is_dir())
}

/// Folders in which registries are described.
const FOLDERS: [&str; 2] = ["/etc/containerd/certs.d", "/etc/docker/certs.d"];
const FILE_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Host> {
        Host::read(text, Path::new("/certs"), "registry.example").unwrap()
    }

    #[test]
    fn mirrors_are_asked_in_the_order_of_the_file_and_the_registry_last() {
        let hosts = read(
            r#"
            server = "https://upstream.example"
            ca = "own.pem"
            [host."https://z.example:5000"]
              capabilities = ["pull", "resolve"]
              ca = ["one.pem", "/other/two.pem"]
              client = [["cert.pem", "key.pem"]]
              skip_verify = true
              [host."https://z.example:5000".header]
                x-one = "1"
                x-two = ["2", "3"]
            [host."a.example"]
              capabilities = ["pull"]
            [host."https://pushes.example"]
              capabilities = ["push"]
            [host."http://proxy.example/v2/cache/"]
              override_path = true
            "#,
        );
        let roots: Vec<_> = hosts.iter().map(|it| it.root.as_str()).collect();
        assert_eq!(
            roots,
            [
                "https://z.example:5000/v2",
                "https://a.example/v2",
                "http://proxy.example/v2/cache",
                "https://upstream.example/v2",
            ]
        );
        let first = &hosts[0];
        assert_eq!(first.authorities[0], Path::new("/certs/one.pem"));
        assert_eq!(first.authorities[1], Path::new("/other/two.pem"));
        assert_eq!(first.client.len(), 2);
        assert!(first.is_unchecked && first.resolves && !first.pushes);
        assert_eq!(first.headers.get_all("x-two").iter().count(), 2);
        assert!(!hosts[1].resolves);
        assert!(hosts.iter().all(|it| it.is_mirror));
        assert_eq!(hosts[3].authorities[0], Path::new("/certs/own.pem"));
    }

    #[test]
    fn without_a_server_the_registry_itself_is_last() {
        let hosts = read("[host.\"https://m.example\"]\n");
        assert_eq!(hosts[1].root, "https://registry.example/v2");
        assert!(!hosts[1].is_mirror && hosts[1].pushes);
        let docker = Host::read("", Path::new("/"), "docker.io").unwrap();
        assert_eq!(docker[0].root, "https://registry-1.docker.io/v2");
        assert!(!docker[0].is_mirror);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            Host::of_folder(folder.path(), "r.example").unwrap().len(),
            1
        );
        // Also for root, which may read any file.
        std::fs::create_dir(folder.path().join("hosts.toml")).unwrap();
        let refused = Host::of_folder(folder.path(), "r.example").unwrap_err();
        assert!(refused.to_string().contains("hosts.toml"), "{refused}");
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for text in [
            "server = 1",
            "[host.\"ftp://x\"]",
            "[host.\"https://user:secret@x\"]",
            "[host.\"https://x\"]\nca = 3",
            "[host.\"https://x\".header]\n\"a b\" = \"c\"",
            "[host.\"https://x\".header]\nx = \"c\\nd\"",
        ] {
            let read = Host::read(text, Path::new("/"), "r.example");
            assert!(read.is_err(), "{text}");
        }
    }
}
