//! Buckets of an S3 store and their objects: URLs, and requests signed with the current keys.
//!
//! Settings come from `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` and `AWS_REGION` or
//! `AWS_DEFAULT_REGION`. Those that are not set come from the profile `AWS_PROFILE` (or `default`)
//! in `~/.aws/credentials` and `~/.aws/config` (or the files that `AWS_SHARED_CREDENTIALS_FILE` and
//! `AWS_CONFIG_FILE` name). [`keys`] finds the keys. Without keys a request is not signed, which
//! public buckets accept.
//! Must stay true: secrets are neither printed nor logged.
//! Source: AWS, "Authenticating Requests: Using the Authorization Header (AWS Signature Version
//! 4)".

mod host;
mod keys;

use super::resolve::Resolver;
use super::{Fault, parse};
use keys::Keys;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, Error, SignRequest};
use reqwest::blocking::Client;
use reqwest::header::{HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, Url};
use std::collections::HashMap;

/// An object of a store.
pub(super) struct Object {
    url: Url,
    bucket: Bucket,
}

/// A bucket: the place of its objects, and the keys that sign requests for them.
pub(super) struct Bucket {
    /// The URL that an object's key follows after a slash.
    base: String,
    signer: RequestSigner,
    keys: Keys,
}

impl Object {
    /// The object `key` of `bucket`, in the store that the environment names. `client` requests
    /// keys from services that give them.
    pub(super) fn from_environment(
        client: &Client,
        bucket: &str,
        key: &str,
    ) -> Result<Self, Fault> {
        Self::new(bucket, key, host::context(client)?)
    }

    fn new(bucket: &str, key: &str, context: Context) -> Result<Self, Fault> {
        let bucket = Bucket::new(bucket, context)?;
        let url = bucket.url(key)?;
        Ok(Self { url, bucket })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// The current keys, and the headers of a request for a range, signed with them now.
    pub(super) fn headers(&self, range: &str) -> Result<(Option<Credential>, HeaderMap), Fault> {
        let range = HeaderValue::from_str(range).map_err(|error| unsigned(&error))?;
        let headers = HeaderMap::from_iter([(RANGE, range)]);
        self.bucket.sign(&Method::GET, &self.url, headers)
    }

    /// Looks for keys other than those that the store has just refused; true if there are some.
    pub(super) fn renew(&self, refused: Option<&Credential>) -> bool {
        self.bucket.renew(refused)
    }

    /// The reason for the lack of keys, if one of their sources failed.
    pub(super) fn lacks(&self) -> Option<String> {
        self.bucket.lacks()
    }
}

impl Bucket {
    /// A bucket of the store that the environment names. `client` requests keys from services that
    /// give them.
    pub(super) fn from_environment(client: &Client, bucket: &str) -> Result<Self, Fault> {
        Self::new(bucket, host::context(client)?)
    }

    fn new(bucket: &str, context: Context) -> Result<Self, Fault> {
        let variable = |name: &str| context.env_var(name).filter(|value| !value.is_empty());
        let profile = variable("AWS_PROFILE");
        let kept = profile_of(&context, profile.as_deref().unwrap_or("default"));
        // A misspelt name would otherwise read a private bucket without keys, and fail there.
        if kept.is_empty()
            && let Some(profile) = profile
        {
            let text = format!("AWS_PROFILE names {profile}, which no file of ~/.aws has");
            return Err(Fault::Final(text));
        }
        let has_keys = variable("AWS_ACCESS_KEY_ID").is_some()
            || ["aws_access_key_id", "credential_process"]
                .iter()
                .any(|name| kept.contains_key(*name));
        if kept.contains_key("role_arn") && !has_keys {
            let profile = profile.as_deref().unwrap_or("default");
            return Err(Fault::Final(format!(
                "the profile {profile} takes another role, which is left to the AWS CLI: give a \
                 profile of its own the line `credential_process = aws configure \
                 export-credentials --profile {profile} --format process`"
            )));
        }
        // The environment goes before the files, as in the AWS tools.
        let kept = |name: &str| kept.get(name).cloned();
        let region = variable("AWS_REGION")
            .or_else(|| variable("AWS_DEFAULT_REGION"))
            .or_else(|| kept("region"))
            .unwrap_or_else(|| "us-east-1".into());
        let endpoint = variable("AWS_ENDPOINT_URL_S3")
            .or_else(|| variable("AWS_ENDPOINT_URL"))
            .or_else(|| kept("endpoint_url"));
        let base = match endpoint {
            Some(endpoint) => format!("{}/{bucket}", endpoint.trim_end_matches('/')),
            // A certificate for `*.s3...` does not cover a bucket name with dots.
            None if bucket.contains('.') => {
                format!("https://s3.{region}.amazonaws.com/{bucket}")
            }
            None => format!("https://{bucket}.s3.{region}.amazonaws.com"),
        };
        if parse(&base)?.host_str().is_none() {
            return Err(Fault::Final("the endpoint names no host".into()));
        }
        Ok(Self {
            base,
            signer: RequestSigner::new("s3", &region),
            keys: Keys::new(context, &region),
        })
    }

    /// The URL of an object.
    pub(super) fn url(&self, key: &str) -> Result<Url, Fault> {
        let path = utf8_percent_encode(key, RESERVED);
        parse(&format!("{}/{path}", self.base))
    }

    /// The URL of a list, by the names and values of its query.
    pub(super) fn list_url(&self, query: &[(&str, &str)]) -> Result<Url, Fault> {
        let mut url = self.url("")?;
        let pair = |(name, value): &(&str, &str)| {
            // Not as a form: its plus sign is a space to some servers, and itself to others.
            format!("{name}={}", utf8_percent_encode(value, QUERY))
        };
        let pairs: Vec<String> = query.iter().map(pair).collect();
        url.set_query(Some(&pairs.join("&")));
        Ok(url)
    }

    /// The current keys, and the headers of a request, signed with them now.
    pub(super) fn sign(
        &self,
        method: &Method,
        url: &Url,
        headers: HeaderMap,
    ) -> Result<(Option<Credential>, HeaderMap), Fault> {
        let keys = self.keys.current()?;
        // Signed for each attempt: a signature is valid for some minutes only.
        let request = http::Request::builder()
            .method(method.clone())
            .uri(url.as_str());
        let request = request.body(()).map_err(|error| unsigned(&error))?;
        let (mut head, ()) = request.into_parts();
        head.headers = headers;
        let context = self.keys.context();
        let signed = self
            .signer
            .sign_request(context, &mut head, keys.as_ref(), None);
        host::wait(signed).map_err(|error: Error| unsigned(&error))?;
        Ok((keys, head.headers))
    }

    /// Looks for keys other than those that the store has just refused; true if there are some.
    pub(super) fn renew(&self, refused: Option<&Credential>) -> bool {
        self.keys.renew(refused)
    }

    /// The reason for the lack of keys, if one of their sources failed.
    pub(super) fn lacks(&self) -> Option<String> {
        self.keys.lacks()
    }
}

fn unsigned(error: &dyn std::fmt::Display) -> Fault {
    Fault::Passing(format!("the request cannot be signed: {error}"))
}

/// The settings of one profile.
fn profile_of(context: &Context, name: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    // The credentials last: where both files have a key, theirs counts.
    for (variable, file) in [
        ("AWS_CONFIG_FILE", "~/.aws/config"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ] {
        let path = context.env_var(variable).unwrap_or_else(|| file.into());
        let Some(path) = context.expand_home_dir(&path) else {
            continue;
        };
        let text = host::wait(context.file_read_as_string(&path)).unwrap_or_default();
        let mut inside = false;
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                let section = section.trim();
                // The configuration writes `[profile NAME]`, the credentials `[NAME]`.
                let section = section.strip_prefix("profile ").unwrap_or(section);
                inside = section.trim() == name;
            } else if inside
                && !line.starts_with(['#', ';'])
                && let Some((key, value)) = line.split_once('=')
            {
                found.insert(key.trim().to_owned(), value.trim().to_owned());
            }
        }
    }
    found
}

/// Bytes of a key that S3 requires to be encoded: all but the unreserved ones and the slash.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');
/// Bytes of a value in a query that S3 requires to be encoded.
const QUERY: &AsciiSet = &RESERVED.add(b'/');

#[cfg(test)]
mod tests {
    use super::*;
    use reqsign_core::{FileRead, Result as Found, StaticEnv};

    /// The files of a home directory.
    #[derive(Debug)]
    struct Home;

    impl FileRead for Home {
        async fn file_read(&self, path: &str) -> Found<Vec<u8>> {
            let text = match path {
                "/home/x/.aws/credentials" => {
                    "[default]\naws_access_key_id = D\naws_secret_access_key=S\n\
                 [other]\naws_access_key_id = O\naws_secret_access_key = T\n\
                 aws_session_token = token\n"
                }
                "/home/x/.aws/config" => {
                    "[default]\nregion = eu-central-1\n[profile other]\n# region = x\n\
                 region=eu-west-3\nendpoint_url = http://127.0.0.1:9000/\n\
                 [profile role]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = other\n"
                }
                _ => return Err(Error::unexpected("no such file")),
            };
            Ok(text.into())
        }
    }

    fn object(variables: &[(&str, &str)], bucket: &str) -> Result<Object, Fault> {
        let envs = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let context = Context::new().with_file_read(Home).with_env(StaticEnv {
            home_dir: Some("/home/x".into()),
            envs,
        });
        Object::new(bucket, "a dir/ü+key", context)
    }

    #[test]
    fn variables_come_before_files_and_profiles_are_told_apart() {
        let of = |variables: &[_]| {
            let object = object(variables, "b").expect("an object");
            let keys = object.bucket.keys.current().expect("keys").expect("keys");
            let (_, headers) = object.headers("bytes=0-9").expect("headers");
            let text = |name: &str| headers[name].to_str().expect("text").to_owned();
            let signed = text("authorization");
            assert!(signed.contains(&format!("Credential={}/", keys.access_key_id)));
            assert_eq!(text("range"), "bytes=0-9");
            let token = headers.get("x-amz-security-token");
            let token = token.map(|token| token.to_str().expect("text").to_owned());
            assert_eq!(token, keys.session_token);
            let region = signed.split('/').nth(2).expect("a region").to_owned();
            (object.url.to_string(), region, keys.access_key_id, token)
        };
        let place = "https://b.s3.eu-central-1.amazonaws.com/a%20dir/%C3%BC%2Bkey";
        let region = "eu-central-1".to_owned();
        assert_eq!(of(&[]), (place.to_owned(), region, "D".into(), None));
        let place = "http://127.0.0.1:9000/b/a%20dir/%C3%BC%2Bkey";
        assert_eq!(
            of(&[("AWS_PROFILE", "other")]),
            (
                place.to_owned(),
                "eu-west-3".into(),
                "O".into(),
                Some("token".into())
            )
        );
        let given = of(&[
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", "W"),
            ("AWS_REGION", "us-west-2"),
        ]);
        assert!(given.0.contains(".us-west-2."), "{}", given.0);
        assert_eq!((&*given.2, given.3), ("V", None));
    }

    #[test]
    fn dots_profiles_and_roles() {
        let dotted = object(&[], "a.b").expect("an object");
        assert_eq!(dotted.url.host_str(), Some("s3.eu-central-1.amazonaws.com"));
        let refused = |profile| {
            let object = object(&[("AWS_PROFILE", profile)], "b");
            object.err().expect("a fault").to_string()
        };
        assert!(refused("none").contains("no file of ~/.aws"));
        assert!(refused("role").contains("credential_process = aws"));
        let keys = [
            ("AWS_PROFILE", "role"),
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", "W"),
        ];
        assert!(object(&keys, "b").is_ok());
    }

    #[test]
    fn nothing_is_signed_where_keys_are_empty() {
        let keys = [
            ("AWS_PROFILE", "role"),
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", ""),
        ];
        let object = object(&keys, "b").expect("an object");
        let (keys, headers) = object.headers("bytes=0-9").expect("headers");
        assert!(keys.is_none() && !headers.contains_key("authorization"));
    }
}
