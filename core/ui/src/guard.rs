//! The decision about a request, before anything is looked up: method, host, origin, token.
//!
//! Why here: a page on the loopback can be reached by every program of the machine, and by every
//! page in the owner's browser. A name that an attacker resolves to 127.0.0.1 (DNS rebinding) makes
//! their page one of this origin, so the host is checked by its name. Must stay true: a decision is
//! pure; without the token each path has the same answer. Source: RFC 9110, section 7.2; the Fetch
//! Metadata request headers (W3C).
//!
//! The token is the secret in the page's address: any user of the machine can connect to a port of
//! the loopback, and only the address that was printed to its owner opens the page. Must stay true:
//! 128 bits of the system's randomness, new in each run; compared in a time that depends on the
//! length alone; never logged.

use hyper::StatusCode;
use subtle::ConstantTimeEq;

/// A request, as far as it decides.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) host: Option<&'a str>,
    pub(crate) origin: Option<&'a str>,
    /// `Sec-Fetch-Site`, which browsers set and pages cannot.
    pub(crate) site: Option<&'a str>,
    /// `Sec-Fetch-Dest`.
    pub(crate) destination: Option<&'a str>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// This path, which begins with `/`, may be read.
    Serve(&'a str),
    /// The token is in the query: the browser is sent to the path that has it.
    Enter(&'a str),
    /// Refused, with a line that says why.
    Refuse(StatusCode, &'static str),
}

/// Decides about one request.
pub(crate) fn judge<'a>(token: &Token, ask: &Ask<'a>) -> Verdict<'a> {
    if !matches!(ask.method, "GET" | "HEAD") {
        let reason = "this page is read-only: GET and HEAD alone are answered";
        return Verdict::Refuse(StatusCode::METHOD_NOT_ALLOWED, reason);
    }
    // Before the token: a page under a name that was rebound is refused whatever it knows.
    let Some(host) = ask.host.filter(|host| is_loopback(host)) else {
        let reason = "the host is neither localhost nor an address of the loopback";
        return Verdict::Refuse(StatusCode::FORBIDDEN, reason);
    };
    let is_own = |origin: &str| origin.strip_prefix("http://") == Some(host);
    if ask.origin.is_some_and(|origin| !is_own(origin)) {
        let reason = "a page of another origin asks";
        return Verdict::Refuse(StatusCode::FORBIDDEN, reason);
    }
    // A link on another page may lead here; another page may not embed or fetch anything of ours.
    let is_foreign = ask
        .site
        .is_some_and(|site| !matches!(site, "same-origin" | "none"));
    if is_foreign && ask.destination != Some("document") {
        let reason = "a page of another site asks";
        return Verdict::Refuse(StatusCode::FORBIDDEN, reason);
    }
    if let Some(path) = below_token(token, ask.path) {
        return Verdict::Serve(path);
    }
    let given = ask.query.into_iter().flat_map(|query| query.split('&'));
    let mut given = given.filter_map(|part| part.strip_prefix("token="));
    match given.next() {
        // A path with two slashes in front would name another host in the answer's Location.
        Some(word) if token.is(word) && !ask.path.starts_with("//") => Verdict::Enter(ask.path),
        _ => {
            let reason =
                "the token is missing or wrong: open the address that `sidecore ui` printed";
            Verdict::Refuse(StatusCode::FORBIDDEN, reason)
        }
    }
}

/// The path behind `/TOKEN`.
fn below_token<'a>(token: &Token, path: &'a str) -> Option<&'a str> {
    // The word's length is fixed, so the comparison's time says nothing about where it differs.
    let rest = path.strip_prefix('/')?;
    let (word, below) = rest.split_at_checked(TOKEN_CHARS)?;
    (token.is(word) && below.starts_with('/')).then_some(below)
}

/// True for a `Host` that names this machine's loopback, with any port: a forwarded one differs.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else {
                return false;
            };
            return address == "::1" && is_port(port);
        }
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let port = &host[name.len()..];
    let is_address = name
        .parse()
        .is_ok_and(|address: std::net::Ipv4Addr| address.is_loopback());
    is_port(port) && (is_address || name.eq_ignore_ascii_case("localhost"))
}

/// True for nothing, and for `:` with a number.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.parse::<u16>().is_ok())
}

/// Characters of a token: hexadecimal digits, four bits each.
pub(crate) const TOKEN_CHARS: usize = 32;

/// A secret of this run.
#[derive(Clone)]
pub(crate) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Draws one. Waits for the system's randomness where the machine has just booted.
    pub(crate) fn draw() -> std::io::Result<Self> {
        let mut bytes = [0u8; TOKEN_CHARS / 2];
        let mut drawn = 0;
        while drawn < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            // A signal may end it early, with a part of the bytes.
            match rustix::rand::getrandom(&mut bytes[drawn..], flags) {
                Ok(count) => drawn += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// True if `word` is the token.
    pub(crate) fn is(&self, word: &str) -> bool {
        self.0.as_bytes().ct_eq(word.as_bytes()).into()
    }

    /// Its characters, for the address that the owner gets.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask<'a>(path: &'a str, query: Option<&'a str>) -> Ask<'a> {
        Ask {
            method: "GET",
            path,
            query,
            host: Some("127.0.0.1:4000"),
            ..Ask::default()
        }
    }

    fn refused(token: &Token, ask: Ask<'_>) -> StatusCode {
        match judge(token, &ask) {
            Verdict::Refuse(status, _) => status,
            other => panic!("{ask:?}: {other:?}"),
        }
    }

    #[test]
    fn the_token_opens_the_page_in_the_path_and_in_the_query() {
        let token = Token::draw().unwrap();
        let path = format!("/{}/ui.js", token.reveal());
        assert_eq!(judge(&token, &ask(&path, None)), Verdict::Serve("/ui.js"));
        let query = format!("a=b&token={}", token.reveal());
        assert_eq!(judge(&token, &ask("/", Some(&query))), Verdict::Enter("/"));
        let query = format!("token={}", token.reveal());
        let other = Token::draw().unwrap();
        for (path, query) in [
            ("/", None),
            ("/ui.js", None),
            ("", None),
            ("*", None),
            ("//evil.example", Some(&*query)),
            ("/", Some("token=")),
            ("/", Some("token=é")),
            (&*format!("/{}", token.reveal()), None),
            (&*format!("//{}/", token.reveal()), None),
            (&*format!("/{}/", other.reveal()), None),
            (&*format!("/{}é/", &token.reveal()[1..]), None),
        ] {
            assert_eq!(
                refused(&token, ask(path, query)),
                StatusCode::FORBIDDEN,
                "{path}"
            );
        }
    }

    #[test]
    fn hosts_that_an_attacker_resolves_are_refused() {
        let token = Token::draw().unwrap();
        let path = format!("/{}/", token.reveal());
        for (host, good) in [
            ("127.0.0.1:4000", true),
            ("127.0.0.1", true),
            ("127.8.8.8:1", true),
            ("localhost:8080", true),
            ("LocalHost", true),
            ("[::1]:4000", true),
            ("[::1]", true),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:4000", false),
            ("127.0.0.1:4000.evil.example", false),
            ("evil.example", false),
            ("localhost:", false),
            ("localhost:80:80", false),
            ("user@localhost", false),
            ("[::1", false),
            ("[::2]:80", false),
            ("[::1]x", false),
            ("10.0.0.1:4000", false),
            ("0.0.0.0:4000", false),
            ("", false),
        ] {
            let mut ask = ask(&path, None);
            ask.host = Some(host);
            let is_served = judge(&token, &ask) == Verdict::Serve("/");
            assert_eq!(is_served, good, "{host}");
        }
        let mut without = ask(&path, None);
        without.host = None;
        assert_eq!(refused(&token, without), StatusCode::FORBIDDEN);
    }

    #[test]
    fn other_methods_origins_and_sites_are_refused() {
        let token = Token::draw().unwrap();
        let path = format!("/{}/", token.reveal());
        for method in [
            "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get",
        ] {
            let mut ask = ask(&path, None);
            ask.method = method;
            assert_eq!(refused(&token, ask), StatusCode::METHOD_NOT_ALLOWED);
        }
        for (origin, good) in [
            ("http://127.0.0.1:4000", true),
            ("http://127.0.0.1:4001", false),
            ("https://127.0.0.1:4000", false),
            ("http://localhost:4000", false),
            ("http://evil.example", false),
            ("null", false),
        ] {
            let mut ask = ask(&path, None);
            ask.origin = Some(origin);
            assert_eq!(judge(&token, &ask) == Verdict::Serve("/"), good, "{origin}");
        }
        for (site, destination, good) in [
            ("same-origin", "empty", true),
            ("none", "document", true),
            ("cross-site", "document", true),
            ("cross-site", "iframe", false),
            ("cross-site", "script", false),
            ("same-site", "empty", false),
        ] {
            let mut ask = ask(&path, None);
            (ask.site, ask.destination) = (Some(site), Some(destination));
            let is_served = judge(&token, &ask) == Verdict::Serve("/");
            assert_eq!(is_served, good, "{site} {destination}");
        }
    }
}

#[cfg(test)]
mod token_tests {
    use super::*;

    #[test]
    fn a_token_is_drawn_anew_and_fits_itself_alone() {
        let (one, two) = (Token::draw().unwrap(), Token::draw().unwrap());
        assert_eq!(one.reveal().len(), TOKEN_CHARS);
        assert!(one.is(one.reveal()));
        assert!(!one.is(two.reveal()));
        assert!(!one.is(""));
        assert!(!one.is(&one.reveal()[1..]));
        assert!(!one.is(&format!("{}0", one.reveal())));
        assert!(!format!("{one:?}").contains(one.reveal()));
    }
}
