//! Places of images: the URLs that commands take in place of a file's name.
//!
//! Must stay true: no printed, logged or stored form of a location holds a secret; a query string
//! may be a signature, and is left out.

use crate::RemoteError;
use std::fmt;

/// The place of an image, as given by its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// `http://` or `https://`, unchanged.
    Http(String),
    /// `s3://BUCKET/KEY`.
    S3 {
        /// The bucket.
        bucket: String,
        /// The object's key, without a leading slash.
        key: String,
    },
    /// `oci://REGISTRY/REPOSITORY:TAG` or `...@sha256:DIGEST`.
    Oci {
        /// Host, with the port if there is one.
        registry: String,
        /// The repository's path.
        repository: String,
        /// Tag or digest.
        reference: String,
    },
}

impl Location {
    /// Parses a URL; `None` if `text` begins with no scheme, and so names a file.
    ///
    /// # Errors
    /// [`RemoteError::Location`]: the scheme is not known, or the rest is not valid for it.
    pub fn parse(text: &str) -> Option<Result<Self, RemoteError>> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
            Some(_) => return None,
            None => return Self::lacks_slash(text),
        };
        // Messages and logs show the URL: without what may be a password or a signature.
        let refuse = |reason, form| {
            let url = format!("{scheme}://{}", without_user(without_query(rest)));
            Some(Err(RemoteError::Location { url, reason, form }))
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => {
                // A password in a URL ends up in lists of processes and in logs.
                let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
                if host.is_empty() || host.contains('@') {
                    let reason = "a host is missing, or has a name and a password before it";
                    return refuse(reason, HTTP_FORM);
                }
                Some(Ok(Self::Http(text.to_owned())))
            }
            "s3" => match rest.split_once('/') {
                Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => {
                    Some(Ok(Self::S3 {
                        bucket: bucket.to_owned(),
                        key: key.to_owned(),
                    }))
                }
                _ => refuse("a bucket or a key is missing", S3_FORM),
            },
            "oci" => {
                let Some((registry, path)) = rest.split_once('/') else {
                    return refuse("a repository is missing", OCI_FORM);
                };
                // A digest has a colon of its own, so its mark is looked for first.
                let (repository, reference) = match path.split_once('@') {
                    Some((repository, digest)) => (repository, digest),
                    None => path.rsplit_once(':').unwrap_or((path, "latest")),
                };
                let digest = reference.strip_prefix("sha256:");
                let sound = match digest {
                    Some(hex) => hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()),
                    None => !reference.is_empty() && reference.bytes().all(is_tag_byte),
                };
                let named = is_path(registry, repository);
                if !named || !sound {
                    return refuse("it names no image of a registry", OCI_FORM);
                }
                Some(Ok(Self::Oci {
                    registry: registry.to_owned(),
                    repository: repository.to_owned(),
                    reference: reference.to_owned(),
                }))
            }
            "file" => refuse("a file is named by its path alone", FORMS),
            _ => refuse("this scheme is not known", FORMS),
        }
    }

    /// Refuses a known scheme with one slash: `s3:/bucket/key`.
    fn lacks_slash(text: &str) -> Option<Result<Self, RemoteError>> {
        let (scheme, rest) = text.split_once(":/")?;
        let form = match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => HTTP_FORM,
            "s3" => S3_FORM,
            "oci" => OCI_FORM,
            _ => return None,
        };
        Some(Err(RemoteError::Location {
            url: format!("{scheme}:/{}", without_user(without_query(rest))),
            reason: "two slashes follow the scheme",
            form,
        }))
    }
}

/// True for what can be a scheme (RFC 3986, section 3.1); a single letter is none.
fn is_scheme(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.len() > 1
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(is_inner)
}

impl Location {
    /// Location of the sidecar index: the object's name with `.sidx` appended. `None` in a
    /// registry, where blobs have no names next to each other.
    #[must_use]
    pub fn sidecar(&self) -> Option<Self> {
        match self {
            Self::Http(url) => {
                // The name is in the path; a query may be needed for both objects.
                let path_end = without_query(url).len();
                let (path, query) = url.split_at(path_end);
                Some(Self::Http(format!("{path}.sidx{query}")))
            }
            Self::S3 { bucket, key } => Some(Self::S3 {
                bucket: bucket.clone(),
                key: format!("{key}.sidx"),
            }),
            Self::Oci { .. } => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(url) => f.write_str(without_query(url)),
            Self::S3 { bucket, key } => write!(f, "s3://{bucket}/{key}"),
            Self::Oci {
                registry,
                repository,
                reference,
            } => {
                let mark = if reference.starts_with("sha256:") {
                    '@'
                } else {
                    ':'
                };
                write!(f, "oci://{registry}/{repository}{mark}{reference}")
            }
        }
    }
}

/// True if the names of a registry and of a repository can be parts of a URL: no byte may end it or
/// lead elsewhere.
pub(crate) fn is_path(registry: &str, repository: &str) -> bool {
    let place_byte = |b: u8| is_tag_byte(b) || b":[]".contains(&b);
    let placed = !registry.is_empty() && registry.bytes().all(place_byte);
    let path_byte = |b: u8| is_tag_byte(b) || b == b'/';
    placed && !repository.is_empty() && repository.bytes().all(path_byte)
}

/// True for the 64 digits of a SHA-256, in lower case.
#[must_use]
pub fn is_sha256(digits: &str) -> bool {
    let is_digit = |it: u8| it.is_ascii_digit() || (b'a'..=b'f').contains(&it);
    digits.len() == 64 && digits.bytes().all(is_digit)
}

fn is_tag_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// The rest of a URL after its scheme, without user name and password.
fn without_user(rest: &str) -> &str {
    let host_end = rest.find('/').unwrap_or(rest.len());
    match rest[..host_end].rfind('@') {
        Some(at) => &rest[at + 1..],
        None => rest,
    }
}

const HTTP_FORM: &str = "https://HOST/PATH";
const S3_FORM: &str = "s3://BUCKET/KEY";
const OCI_FORM: &str = "oci://REGISTRY/REPOSITORY:TAG";
const FORMS: &str = "a file's path, http://HOST/PATH, https://HOST/PATH, s3://BUCKET/KEY or \
                     oci://REGISTRY/REPOSITORY:TAG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_names_of_files() {
        for name in [
            "disk.img",
            "/a/b",
            "./http://x",
            "-",
            "c:/x",
            "c://x",
            "a:b/c",
            "1a://x",
            "a b://x",
        ] {
            assert!(Location::parse(name).is_none(), "{name}");
        }
        let parse = |text| Location::parse(text).expect("a known scheme");
        for (text, shown) in [
            ("https://host/a.img?sig=secret", "https://host/a.img"),
            ("s3://bucket/some/key", "s3://bucket/some/key"),
            ("oci://reg:5000/a/b", "oci://reg:5000/a/b:latest"),
            ("oci://reg:5000/a/b:v1", "oci://reg:5000/a/b:v1"),
        ] {
            assert_eq!(parse(text).expect(text).to_string(), shown);
        }
        for (text, sidecar) in [
            (
                "https://host/a.zst?sig=x#y",
                "https://host/a.zst.sidx?sig=x#y",
            ),
            ("s3://bucket/a key", "s3://bucket/a key.sidx"),
        ] {
            let found = parse(text).expect(text).sidecar();
            assert_eq!(found, Some(parse(sidecar).expect(sidecar)));
        }
        assert_eq!(parse("oci://reg/a").expect("a tag").sidecar(), None);
        let digest = format!("oci://reg/a@sha256:{}", "0".repeat(64));
        assert_eq!(parse(&digest).expect("a digest").to_string(), digest);
        let unknown = parse("gs://bucket/x.img")
            .expect_err("no such scheme")
            .to_string();
        assert!(unknown.contains("gs://bucket/x.img: this scheme is not known; take"));
        for known in ["http://", "https://", "s3://", "oci://", "path"] {
            assert!(unknown.contains(known), "{unknown}");
        }
        for text in [
            "http://",
            "https://user:pass@host/x?secret",
            "https://secret:secret@@host",
            "s3://secret@",
            "s3://bucket",
            "s3:///key",
            "oci://reg",
            "oci://reg/a@sha256:12",
            "oci://reg/a b:c",
            "oci://secret:secret@localhost:5000/a",
            "oci://reg?secret/a",
            "gs://bucket/x.img",
            "FILE:///etc/x",
            "ftp://secret:secret@host/x",
            "s3:/bucket/x",
            "https:/secret@host/x?secret",
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
