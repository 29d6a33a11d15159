//! A registry's documents: manifests, indexes, and the answers of its token service.
//!
//! Must stay true: no document has an effect before its digest was verified; a layer's digest is
//! checked to be 64 hexadecimal digits before it becomes part of a URL; a token is checked to be
//! one word of ASCII before it becomes part of a header. Documents take memory in proportion to
//! their bytes, which are bounded by `MANIFEST_BYTES_MAX` and `TOKEN_BYTES_MAX`. Pure.
//! Source: OCI Image Format Specification 1.1, "Image Manifest" and "Image Index".

use super::super::Fault;
use ring::digest;
use serde::Deserialize;
use sidecore_block::trust::digits_of;

/// A manifest, or an index of manifests.
#[derive(Deserialize)]
pub struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    size: u64,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// The layer that holds the image.
#[derive(Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its digest's 64 digits, in lower case.
    pub sha256: String,
    /// Its size in bytes.
    pub size_bytes: u64,
}

impl Manifest {
    /// All layers, each with its type.
    pub(super) fn all_layers(&self) -> Result<Vec<(Layer, String)>, Fault> {
        let layer = |it: &Descriptor| {
            let layer = Layer {
                sha256: it.sha256("layer")?,
                size_bytes: it.size,
            };
            Ok((layer, it.media_type.clone()))
        };
        self.layers.iter().map(layer).collect()
    }

    /// Reads a manifest that was requested by `reference`; `given` is the digest that the registry
    /// sent with it.
    pub fn read(text: &[u8], reference: &str, given: Option<&str>) -> Result<Self, Fault> {
        let found = digits_of(digest::digest(&digest::SHA256, text).as_ref());
        // A tag may move; then the digest that came with the manifest still detects damage.
        let asked = reference.starts_with("sha256:").then_some(reference);
        for expected in [asked, given].into_iter().flatten() {
            let expected = expected.to_ascii_lowercase();
            if expected
                .strip_prefix("sha256:")
                .is_some_and(|it| it != found)
            {
                let text = format!("the manifest's digest is sha256:{found}, not {expected}");
                return Err(Fault::Final(text));
            }
        }
        serde_json::from_slice(text)
            .map_err(|error| Fault::Final(format!("the manifest cannot be read: {error}")))
    }

    /// Digest of the manifest in an index that is for Linux on this machine's architecture, or of
    /// the only one; `None` if this is not an index.
    pub fn for_this_machine(&self) -> Option<Result<String, Fault>> {
        let manifests = &self.manifests;
        if manifests.is_empty() {
            return None;
        }
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let is_ours = |it: &&Descriptor| {
            let platform = it.platform.as_ref();
            platform.is_some_and(|it| it.architecture == architecture && it.os == "linux")
        };
        // An image of a disk may be for any machine: a single manifest is taken whatever it names.
        let only = (manifests.len() == 1).then(|| &manifests[0]);
        let found = manifests.iter().find(is_ours).or(only).ok_or_else(|| {
            Fault::Final(format!(
                "the index has no manifest for linux/{architecture}"
            ))
        });
        Some(found.and_then(|it| Ok(format!("sha256:{}", it.sha256("manifest")?))))
    }

    /// The layer that holds the image: the only one, or the only one that is not an archive.
    pub fn image(self) -> Result<Layer, Fault> {
        let mut layers = self.layers;
        let count = layers.len();
        // An image is no archive; other layers of the same manifest often are.
        if count > 1 {
            layers.retain(|layer| !layer.media_type.contains("tar"));
        }
        match (layers.pop(), layers.len()) {
            (Some(layer), 0) => Ok(Layer {
                sha256: layer.sha256("layer")?,
                size_bytes: layer.size,
            }),
            _ => Err(Fault::Final(format!(
                "the manifest has {count} layers, and not one of them is plainly an image; push \
                 the image as the only layer (`oras push REGISTRY/REPOSITORY:TAG disk.img`)"
            ))),
        }
    }
}

impl Descriptor {
    /// The hexadecimal digits of its digest.
    fn sha256(&self, what: &str) -> Result<String, Fault> {
        let digits = sha256_digits(&self.digest).ok_or_else(|| {
            let shown: String = self.digest.chars().take(DIGEST_SHOWN_MAX).collect();
            Fault::Final(format!("the {what}'s digest is {shown}, not of SHA-256"))
        })?;
        Ok(digits.to_ascii_lowercase())
    }
}

/// The hexadecimal digits of a digest (`sha256:…`); `None` where it is no whole one of SHA-256.
#[must_use]
pub fn sha256_digits(digest: &str) -> Option<&str> {
    let is_whole = |it: &&str| it.len() == 64 && it.bytes().all(|b| b.is_ascii_hexdigit());
    digest.strip_prefix("sha256:").filter(is_whole)
}

/// The token in an answer of a token service.
pub fn token(text: &[u8]) -> Result<String, Fault> {
    let answer: Option<Token> = serde_json::from_slice(text).ok();
    // Services for OAuth 2.0 call it `access_token`.
    let token = answer.and_then(|it| it.token.or(it.access_token));
    let is_word = |it: &String| !it.is_empty() && it.bytes().all(|b| b.is_ascii_graphic());
    token
        .filter(is_word)
        .ok_or_else(|| Fault::Final("the registry's token service gave no token".into()))
}

/// The specification's limit for manifests.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Tokens have 2 to 6 KiB; servers refuse headers of more than 16 KiB.
pub(crate) const TOKEN_BYTES_MAX: u64 = 64 << 10;
/// Characters of a digest that a message quotes.
const DIGEST_SHOWN_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_that_would_change_the_url_is_refused() {
        let hex = "ab".repeat(32);
        for digest in [
            format!("sha256:{}", "../".repeat(21) + "x"),
            format!("sha256:{}?x=", &hex[..61]),
            format!("sha256:{hex}0"),
            format!("sha512:{hex}"),
            "sha256:".into(),
        ] {
            let layers = format!(r#"{{"layers":[{{"digest":"{digest}","size":5}}]}}"#);
            let manifest = Manifest::read(layers.as_bytes(), "latest", None).unwrap();
            let error = manifest.image().unwrap_err().to_string();
            assert!(error.contains("not of SHA-256"), "{error}");
            let index = format!(r#"{{"manifests":[{{"digest":"{digest}","size":5}}]}}"#);
            let index = Manifest::read(index.as_bytes(), "latest", None).unwrap();
            assert!(index.for_this_machine().unwrap().is_err(), "{digest}");
        }
    }

    #[test]
    fn a_token_is_one_word() {
        let of = |text: &str| token(text.as_bytes()).ok();
        assert_eq!(of(r#"{"token":"a.b-c"}"#).as_deref(), Some("a.b-c"));
        assert_eq!(of(r#"{"access_token":"t"}"#).as_deref(), Some("t"));
        for bad in [
            r#"{"token":"a\nb"}"#,
            r#"{"token":""}"#,
            "{}",
            "[",
            r#"{"token":"ü"}"#,
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
