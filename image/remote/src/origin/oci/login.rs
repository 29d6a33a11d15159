//! Destinations of a password of `docker login`: the registry, and a token service of the same
//! owner.
//!
//! Why here: a registry names its token service in its challenge, which may contain any address.
//! Must stay true: no login is sent unencrypted except to this machine. A token service gets the
//! login of a registry only if both have one owner (`same_owner`); otherwise it gets only a login
//! that was made for the service itself.
//! Source: Distribution project, "Token Authentication Specification"; publicsuffix.org.

use super::super::{Fault, parse};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use std::collections::HashMap;
use std::path::PathBuf;
use url_host::{Place, place};

/// Logins stored by `docker login` or `podman login`: base64 of name and password, by the name of
/// the registry.
#[derive(Debug, Default)]
pub struct Logins {
    auths: HashMap<String, String>,
    /// Programs that keep logins: of a registry, and of all others.
    helpers: HashMap<String, String>,
    store: Option<String>,
    /// Those of further files, which are asked where this one has no login.
    others: Vec<Logins>,
}

impl Logins {
    /// The logins of this user; empty if there are no files of them.
    pub(crate) fn of_user() -> Self {
        let variable = |name: &str| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        let paths = files(variable, rustix::process::geteuid().as_raw());
        let texts = paths.iter().filter_map(|path| std::fs::read(path).ok());
        let mut all = texts.map(|text| Self::read(&text));
        let first = all.next().unwrap_or_default();
        Self {
            others: all.collect(),
            ..first
        }
    }

    /// The logins in a file of either program, or of a pull secret of Kubernetes.
    pub fn read(text: &[u8]) -> Self {
        let file: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
        let auths = file.get("auths").and_then(serde_json::Value::as_object);
        let auths = auths.into_iter().flatten().filter_map(|(name, entry)| {
            let word = |key: &str| entry.get(key).and_then(serde_json::Value::as_str);
            let login = match word("auth").filter(|login| !login.is_empty()) {
                Some(login) => login.to_owned(),
                None => STANDARD.encode(format!("{}:{}", word("username")?, word("password")?)),
            };
            // It becomes part of a header, where a line break would begin another one.
            let is_word = login.bytes().all(|b| b.is_ascii_graphic());
            is_word.then(|| (name.clone(), login))
        });
        let auths = auths.collect();
        // It becomes part of a program's name.
        let is_name = |it: &&str| {
            !it.is_empty()
                && it
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let program = |it: &serde_json::Value| it.as_str().filter(is_name).map(str::to_owned);
        let helpers = file
            .get("credHelpers")
            .and_then(serde_json::Value::as_object);
        let helpers = helpers.into_iter().flatten();
        let helpers = helpers.filter_map(|(name, it)| Some((name.clone(), program(it)?)));
        Self {
            auths,
            helpers: helpers.collect(),
            store: file.get("credsStore").and_then(program),
            others: Vec::new(),
        }
    }

    /// The login by a name: as a file has it, or as the program knows that keeps it. Blocks on
    /// that program.
    fn get(&self, name: &str) -> Option<String> {
        let own = self.auths.get(name).cloned();
        let own = own.or_else(|| self.of_helper(name));
        own.or_else(|| self.others.iter().find_map(|it| it.get(name)))
    }

    /// The login by a name as a file has it.
    fn written(&self, name: &str) -> Option<String> {
        let own = self.auths.get(name).cloned();
        own.or_else(|| self.others.iter().find_map(|it| it.written(name)))
    }

    fn of_helper(&self, name: &str) -> Option<String> {
        let helper = self.helpers.get(name).or(self.store.as_ref())?;
        match helper::login(helper, name) {
            Ok(login) => login,
            Err(error) => {
                tracing::warn!("docker-credential-{helper} gives no login for {name}: {error}");
                None
            }
        }
    }

    /// The login for a registry, named as in a location.
    pub(crate) fn of_registry(&self, registry: &str) -> Option<String> {
        // Docker has kept the name of its first registry as the key of this login.
        let (name, hosts) = match registry {
            "docker.io" => (DOCKER, &["docker.io", "index.docker.io"][..]),
            other => (other, std::slice::from_ref(&registry)),
        };
        // The last forms are those of old files, and of pull secrets.
        let written = |host: &str| {
            let forms = [
                host.to_owned(),
                format!("https://{host}"),
                format!("https://{host}/v1/"),
                format!("https://{host}/v2/"),
            ];
            forms.iter().find_map(|form| self.written(form))
        };
        let found = self.get(name);
        found.or_else(|| hosts.iter().find_map(|host| written(host)))
    }

    /// The login for a repository of a registry: one for it, or for a folder that it is in, as
    /// `podman login REGISTRY/FOLDER` keeps them, or else the registry's.
    pub(crate) fn of_repository(&self, registry: &str, repository: &str) -> Option<String> {
        let mut scope = format!("{registry}/{repository}");
        while scope.len() > registry.len() {
            if let Some(login) = self.written(&scope) {
                return Some(login);
            }
            scope.truncate(scope.rfind('/').unwrap_or(0));
        }
        self.of_registry(registry)
    }

    /// The login for a mirror of a registry, by its host's name; none without TLS, except to this
    /// machine.
    pub(crate) fn of_server(&self, url: &Url) -> Option<String> {
        let is_safe = url.scheme() == "https" || is_here(url);
        let host = url.host_str().filter(|_| is_safe)?;
        match url.port() {
            Some(port) => self.of_registry(&format!("{host}:{port}")),
            None => self.of_registry(host),
        }
    }

    /// The login for the token service at `service`, which `registry` has named; `own` is the
    /// registry's login.
    ///
    /// # Errors
    /// [`Fault::Final`]: no request may be sent to the service.
    pub fn of_service(
        &self,
        registry: &Url,
        service: &Url,
        own: Option<&str>,
    ) -> Result<Option<String>, Fault> {
        let named = service.host_str().unwrap_or("no host");
        let is_safe = match service.scheme() {
            "https" => true,
            // A registry on this machine has no certificate, and its service has none either.
            "http" => registry.scheme() == "http" && is_here(registry) && is_here(service),
            _ => false,
        };
        if !is_safe {
            return Err(Fault::Final(format!(
                "the registry names a token service without TLS ({}://{named}): nothing is asked \
                 there, for a login or a token could be read on the way",
                service.scheme()
            )));
        }
        // The client would send these, whatever is decided below.
        if !service.username().is_empty() || service.password().is_some() {
            let text = "the registry names a token service with a name and a password";
            return Err(Fault::Final(text.into()));
        }
        if same_owner(registry, service) {
            return Ok(own.map(str::to_owned));
        }
        let host = match service.port() {
            Some(port) => format!("{named}:{port}"),
            None => named.to_owned(),
        };
        match (self.get(&host), own) {
            (Some(login), _) => Ok(Some(login)),
            // Without any login there is none to lose; a token may be free for public images.
            (None, None) => Ok(None),
            // An error and not a request without login: its refusal would name no reason.
            (None, Some(_)) => Err(Fault::Final(format!(
                "the registry {} names the token service {host}, which is not its own: the login \
                 is not sent there; where that is right, log in to it (`docker login {host}`)",
                registry.host_str().unwrap_or_default()
            ))),
        }
    }
}

/// Files of logins in the order in which they are asked: the one that a variable names, or those of
/// podman, docker, and the kubelet of this machine.
fn files(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32) -> Vec<PathBuf> {
    if let Some(file) = variable("REGISTRY_AUTH_FILE") {
        return vec![file];
    }
    if let Some(folder) = variable("DOCKER_CONFIG") {
        return vec![folder.join("config.json")];
    }
    let home = variable("HOME");
    let in_home = |path: &str| home.as_ref().map(|home| home.join(path));
    let run = variable("XDG_RUNTIME_DIR").map(|run| run.join("containers"));
    // Folders below /run are made by root alone.
    let run = run.unwrap_or_else(|| format!("/run/containers/{uid}").into());
    let settings = variable("XDG_CONFIG_HOME").or_else(|| in_home(".config"));
    let found = [
        Some(run.join("auth.json")),
        settings.map(|settings| settings.join("containers/auth.json")),
        in_home(".docker/config.json"),
        Some("/var/lib/kubelet/config.json".into()),
    ];
    found.into_iter().flatten().collect()
}

/// Key of the login for docker.io, as `docker login` writes it.
const DOCKER: &str = "https://index.docker.io/v1/";

/// A `Bearer` challenge: the token service, with the parameters of the request to it.
#[derive(Debug)]
pub struct Challenge {
    pub service: Url,
}

impl Challenge {
    /// Parses the header `WWW-Authenticate`; `None` for another scheme.
    pub fn read(text: &str) -> Option<Result<Self, Fault>> {
        let (scheme, mut rest) = text.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = Vec::new();
        // A scope may contain commas, so values are delimited by their quotes.
        while let Some((name, after)) = rest.split_once("=\"") {
            let (value, more) = after.split_once('"')?;
            parameters.push((name.trim_matches([',', ' ']), value));
            rest = more;
        }
        let (_, realm) = parameters.iter().find(|(name, _)| *name == "realm")?;
        Some(parse(realm).map(|mut service| {
            let asked = parameters.iter();
            for (name, value) in asked.filter(|(name, _)| matches!(*name, "service" | "scope")) {
                service.query_pairs_mut().append_pair(name, value);
            }
            // A fragment is never sent to a server.
            service.set_fragment(None);
            Self { service }
        }))
    }
}

/// True if both hosts have one owner: they are the same, or names within one registered domain
/// (`registry.example.co.uk` and `auth.example.co.uk`, not `a.github.io` and `b.github.io`). In a
/// domain that is not on the public suffix list, only parents of the registry's own name are
/// accepted (`registry.git.lan` and `git.lan`).
fn same_owner(registry: &Url, service: &Url) -> bool {
    match (place(registry), place(service)) {
        (Some(Place::Here), Some(Place::Here)) => true,
        (Some(Place::Address(one)), Some(Place::Address(other))) => one == other,
        (Some(Place::Name(one)), Some(Place::Name(other))) => {
            let domain = |name| {
                let suffix = psl::suffix(str::as_bytes(name))?;
                let domain = psl::domain_str(name)?;
                suffix.is_known().then_some(domain)
            };
            let is_parent = |name: &str, parent: &str| {
                let child = name
                    .strip_suffix(parent)
                    .is_some_and(|it| it.ends_with('.'));
                // A top-level domain such as `lan` has many owners.
                child && parent.contains('.')
            };
            match (domain(&one), domain(&other)) {
                _ if one == other => true,
                (Some(one), Some(other)) => one == other,
                (None, None) => is_parent(&one, &other),
                _ => false,
            }
        }
        _ => false,
    }
}

/// True if the URL names this machine by a name that cannot resolve to another.
fn is_here(url: &Url) -> bool {
    matches!(place(url), Some(Place::Here))
}

mod helper {
    //! Programs that keep logins: `docker-credential-NAME get`.
    //!
    //! Source: docker-credential-helpers, "Development".

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::Deserialize;
    use std::io::{self, Read, Write};
    use std::process::{Command, Stdio};

    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }

    /// The login for `server`; `None` if the program has none.
    pub(super) fn login(program: &str, server: &str) -> io::Result<Option<String>> {
        let mut child = Command::new(format!("docker-credential-{program}"))
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // A program that has ended already says why by its status.
            let _ = input.write_all(server.as_bytes());
        }
        let mut text = Vec::new();
        if let Some(output) = child.stdout.take() {
            output.take(ANSWER_BYTES_MAX).read_to_end(&mut text)?;
        }
        if !child.wait()?.success() {
            return Ok(None);
        }
        let answer: Answer = serde_json::from_slice(&text)?;
        match &*answer.username {
            // A token for another protocol (OAuth 2.0), which is not spoken here.
            "<token>" => Err(io::Error::other("it has a token instead of a password")),
            name => Ok(Some(STANDARD.encode(format!("{name}:{}", answer.secret)))),
        }
    }

    const ANSWER_BYTES_MAX: u64 = 64 << 10;
}

mod url_host {
    //! Hosts of URLs, classified.

    use reqwest::Url;
    use std::net::IpAddr;

    /// The host of a URL.
    pub(super) enum Place {
        /// This machine: `localhost` or a loopback address that tools use for it.
        Here,
        /// Another address.
        Address(IpAddr),
        /// A name, in lower case and without a final dot.
        Name(String),
    }

    pub(super) fn place(url: &Url) -> Option<Place> {
        let host = url.host_str()?;
        let address = host.trim_start_matches('[').trim_end_matches(']');
        Some(match address.parse::<IpAddr>() {
            Ok(it) if it.to_string() == "127.0.0.1" || it.to_string() == "::1" => Place::Here,
            Ok(it) => Place::Address(it),
            Err(_) => match host.trim_end_matches('.').to_ascii_lowercase() {
                name if name == "localhost" => Place::Here,
                name => Place::Name(name),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins() -> Logins {
        Logins::read(
            br#"{"auths":{"reg.example.com":{"auth":"cmVn"},"auth.other.net":{"auth":"b3RoZXI="},
                "https://index.docker.io/v1/":{"auth":"aHVi"},"broken":{"auth":"a\nb"}}}"#,
        )
    }

    fn sent(registry: &str, service: &str, own: Option<&str>) -> Result<Option<String>, String> {
        let (registry, service) = (Url::parse(registry).unwrap(), Url::parse(service).unwrap());
        let sent = logins().of_service(&registry, &service, own);
        sent.map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_login_goes_to_the_registrys_own_token_service() {
        for (registry, service) in [
            (
                "https://reg.example.com/v2/a",
                "https://auth.example.com/token",
            ),
            (
                "https://reg.example.com/v2/a",
                "https://REG.example.com.:8443/token",
            ),
            (
                "https://registry-1.docker.io/v2/a",
                "https://auth.docker.io/token",
            ),
            (
                "https://registry.gitlab.com/v2/a",
                "https://gitlab.com/jwt/auth",
            ),
            ("https://quay.io/v2/a", "https://quay.io/v2/auth"),
            (
                "https://r.example.co.uk/v2/a",
                "https://auth.example.co.uk/t",
            ),
            ("https://registry.git.lan/v2/a", "https://git.lan/jwt/auth"),
            ("https://registry.lan/v2/a", "https://registry.lan/auth"),
            ("https://10.0.0.5/v2/a", "https://10.0.0.5:5001/auth"),
            ("http://localhost:5000/v2/a", "http://127.0.0.1:5001/auth"),
            ("http://127.0.0.1:5000/v2/a", "https://localhost/auth"),
        ] {
            assert_eq!(
                sent(registry, service, Some("own")),
                Ok(Some("own".into())),
                "{service}"
            );
            assert_eq!(sent(registry, service, None), Ok(None), "{service}");
        }
    }

    #[test]
    fn a_login_goes_to_nobody_else() {
        for (registry, service) in [
            (
                "https://reg.example.com/v2/a",
                "https://reg.example.com.evil.net/token",
            ),
            ("https://reg.example.com/v2/a", "https://evil.net/token"),
            ("https://a.github.io/v2/a", "https://b.github.io/token"),
            ("https://a.co.uk/v2/a", "https://b.co.uk/token"),
            ("https://a.co.uk/v2/a", "https://co.uk/token"),
            ("https://registry.lan/v2/a", "https://evil.lan/auth"),
            ("https://registry.lan/v2/a", "https://lan/auth"),
            ("https://notdocker.io/v2/a", "https://docker.io/auth"),
            ("https://10.0.0.5/v2/a", "https://10.0.0.6/auth"),
            ("https://reg.example.com/v2/a", "https://127.0.0.1/auth"),
            ("http://localhost:5000/v2/a", "https://evil.net/auth"),
        ] {
            let error = sent(registry, service, Some("own")).unwrap_err();
            assert!(
                error.contains("not its own") && error.contains("docker login"),
                "{error}"
            );
            assert!(!error.contains("own\""), "{error}");
            assert_eq!(sent(registry, service, None), Ok(None), "{service}");
        }
        // A login that was made for the service itself is sent to it.
        let service = "https://auth.other.net/token";
        assert_eq!(
            sent("https://reg.example.com/", service, Some("own")),
            Ok(Some("b3RoZXI=".into()))
        );
        let elsewhere = "https://auth.other.net:444/token";
        assert!(sent("https://reg.example.com/", elsewhere, Some("own")).is_err());
    }

    #[test]
    fn nothing_is_asked_in_the_clear_elsewhere() {
        for (registry, service) in [
            (
                "https://reg.example.com/v2/a",
                "http://reg.example.com/token",
            ),
            ("https://reg.example.com/v2/a", "http://127.0.0.1/token"),
            ("http://localhost:5000/v2/a", "http://127.0.0.3:18301/token"),
            (
                "http://localhost:5000/v2/a",
                "http://localhost.evil.net/token",
            ),
            ("https://reg.example.com/v2/a", "file:///etc/passwd"),
            ("https://reg.example.com/v2/a", "ftp://reg.example.com/"),
        ] {
            for own in [None, Some("own")] {
                let error = sent(registry, service, own).unwrap_err();
                assert!(error.contains("without TLS"), "{error}");
            }
        }
        let named = sent(
            "https://r.example.com/",
            "https://u:p@r.example.com/",
            Some("own"),
        );
        assert!(named.unwrap_err().contains("a name and a password"));
    }

    #[test]
    fn challenges_are_read_by_their_quotes() {
        let read = |text: &str| Challenge::read(text).map(|it| it.map(|it| it.service.to_string()));
        let found =
            read(r#"bearer realm="https://r/t#x",service="s",scope="a:b:pull,push",error="e""#);
        assert_eq!(
            found,
            Some(Ok("https://r/t?service=s&scope=a%3Ab%3Apull%2Cpush".into()))
        );
        for none in [
            "",
            "Bearer",
            "Basic realm=\"x\"",
            "Bearer realm=\"x",
            "Bearer scope=\"x\"",
        ] {
            assert!(read(none).is_none(), "{none}");
        }
        assert!(read("Bearer realm=\"/token\"").is_some_and(|it| it.is_err()));
    }

    #[test]
    fn logins_are_found_by_the_registrys_name() {
        assert_eq!(
            logins().of_registry("reg.example.com").as_deref(),
            Some("cmVn")
        );
        assert_eq!(logins().of_registry("docker.io").as_deref(), Some("aHVi"));
        assert_eq!(logins().of_registry("broken"), None);
        let helpers = br#"{"credsStore":"none-here","credHelpers":{"a":"../x","b":"b-store"}}"#;
        let helpers = Logins::read(helpers);
        assert_eq!(helpers.store.as_deref(), Some("none-here"));
        assert_eq!(helpers.helpers.len(), 1);
        assert_eq!(helpers.of_registry("b"), None);
        for text in ["", "[]", r#"{"auths":[]}"#, r#"{"auths":{"a":5}}"#] {
            assert_eq!(Logins::read(text.as_bytes()).of_registry("a"), None);
        }
    }

    /// Pull secrets of Kubernetes, podman's folders of a registry, and one file after another.
    #[test]
    fn logins_of_other_programs_are_found() {
        let podman =
            br#"{"auths":{"quay.io/team":{"auth":"dGVhbQ=="},"quay.io":{"auth":"cXVheQ=="},
            "docker.io":{"auth":"cG9kbWFu"},"empty":{"auth":""}}}"#;
        let secret = br#"{"auths":{"https://reg.example.com/v1/":{"username":"u","password":"p"},
            "quay.io":{"auth":"b3RoZXI="},"half":{"username":"u"}}}"#;
        let logins = Logins {
            others: vec![Logins::read(secret)],
            ..Logins::read(podman)
        };
        let of = |registry, repository| logins.of_repository(registry, repository);
        assert_eq!(of("quay.io", "team/app").as_deref(), Some("dGVhbQ=="));
        assert_eq!(of("quay.io", "team").as_deref(), Some("dGVhbQ=="));
        assert_eq!(of("quay.io", "teams/app").as_deref(), Some("cXVheQ=="));
        assert_eq!(of("docker.io", "library/a").as_deref(), Some("cG9kbWFu"));
        // `u:p`
        assert_eq!(of("reg.example.com", "a").as_deref(), Some("dTpw"));
        assert_eq!(of("reg.example.com.evil.net", "a"), None);
        for none in ["half", "empty", "quay", "example.com"] {
            assert_eq!(of(none, "a"), None, "{none}");
        }
    }

    #[test]
    fn files_of_logins_are_asked_in_order() {
        let named = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| PathBuf::from(value))
            };
            let found = files(variable, 7).into_iter();
            found
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        let all = [
            "/run/user/7/containers/auth.json",
            "/h/.config/containers/auth.json",
            "/h/.docker/config.json",
            "/var/lib/kubelet/config.json",
        ];
        let set = [("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(named(&set), all);
        assert_eq!(
            named(&[]),
            [
                "/run/containers/7/auth.json",
                "/var/lib/kubelet/config.json"
            ]
        );
        assert_eq!(
            named(&[("HOME", "/h"), ("DOCKER_CONFIG", "/d")]),
            ["/d/config.json"]
        );
        let both = [("DOCKER_CONFIG", "/d"), ("REGISTRY_AUTH_FILE", "/f")];
        assert_eq!(named(&both), ["/f"]);
    }
}
