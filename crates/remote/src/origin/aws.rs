//! An object of an S3 store: its URL and its credentials, from the environment that other tools
//! use.
//!
//! Read are `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, `AWS_REGION` or `AWS_DEFAULT_REGION`,
//! `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, and of the profile
//! `AWS_PROFILE` (or `default`) in `~/.aws/credentials` and `~/.aws/config` (or the files that
//! `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE` name) what is not among them. Without keys a
//! request goes unsigned, which public buckets answer.
//! Must stay true: secrets are neither printed nor logged.

use super::sign::{self, Credentials, Request, encode_path};
use super::{Fault, parse};
use reqwest::Url;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// An object.
pub(super) struct Object {
    url: Url,
    host: String,
    region: String,
    credentials: Option<Credentials>,
}

impl Object {
    /// The object `key` of `bucket`, in the store that the environment names.
    pub(super) fn from_environment(bucket: &str, key: &str) -> Result<Self, Fault> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        let read = |name, file| {
            let path = variable(name).map_or_else(|| home.join(".aws").join(file), PathBuf::from);
            std::fs::read_to_string(path).unwrap_or_default()
        };
        let files = Files {
            credentials: read("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            config: read("AWS_CONFIG_FILE", "config"),
        };
        Self::new(bucket, key, &variable, &files)
    }

    fn new(
        bucket: &str,
        key: &str,
        variable: &dyn Fn(&str) -> Option<String>,
        files: &Files,
    ) -> Result<Self, Fault> {
        let profile = variable("AWS_PROFILE");
        let kept = files.profile(profile.as_deref().unwrap_or("default"));
        if kept.is_empty()
            && let Some(profile) = profile
        {
            let text = format!("AWS_PROFILE names {profile}, which no file of ~/.aws has");
            return Err(Fault::Final(text));
        }
        let kept = |name: &str| kept.get(name).cloned();
        let region = variable("AWS_REGION")
            .or_else(|| variable("AWS_DEFAULT_REGION"))
            .or_else(|| kept("region"))
            .unwrap_or_else(|| "us-east-1".into());
        // Keys of one place belong together.
        let from_variables = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
        let credentials = match from_variables {
            Some((access_key, secret_key)) => Some(Credentials {
                access_key,
                secret_key,
                session_token: variable("AWS_SESSION_TOKEN"),
            }),
            None => kept("aws_access_key_id")
                .zip(kept("aws_secret_access_key"))
                .map(|(access_key, secret_key)| Credentials {
                    access_key,
                    secret_key,
                    session_token: kept("aws_session_token"),
                }),
        };
        let endpoint = variable("AWS_ENDPOINT_URL_S3")
            .or_else(|| variable("AWS_ENDPOINT_URL"))
            .or_else(|| kept("endpoint_url"));
        let path = encode_path(key);
        let url = match endpoint {
            Some(endpoint) => format!("{}/{bucket}/{path}", endpoint.trim_end_matches('/')),
            // A certificate for `*.s3...` does not cover a name with dots.
            None if bucket.contains('.') => {
                format!("https://s3.{region}.amazonaws.com/{bucket}/{path}")
            }
            None => format!("https://{bucket}.s3.{region}.amazonaws.com/{path}"),
        };
        let url = parse(&url)?;
        let host = match (url.host_str(), url.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (Some(host), None) => host.to_owned(),
            (None, _) => return Err(Fault::Final("the endpoint names no host".into())),
        };
        Ok(Self {
            url,
            host,
            region,
            credentials,
        })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// The headers of a request for a range, signed now.
    pub(super) fn headers(&self, range: &str) -> Vec<(&'static str, String)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let request = Request {
            host: &self.host,
            path: self.url.path(),
            range,
            region: &self.region,
            unix_s: now.map_or(0, |now| now.as_secs()),
        };
        sign::headers(&request, self.credentials.as_ref())
    }
}

/// The texts of `~/.aws/credentials` and `~/.aws/config`.
struct Files {
    credentials: String,
    config: String,
}

impl Files {
    /// The settings of one profile.
    fn profile(&self, name: &str) -> HashMap<String, String> {
        let mut found = HashMap::new();
        for text in [&self.config, &self.credentials] {
            let mut inside = false;
            for line in text.lines().map(str::trim) {
                if let Some(section) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                    let section = section.trim();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(variables: &[(&str, &str)], bucket: &str) -> Result<Object, Fault> {
        let files = Files {
            credentials: "[default]\naws_access_key_id = D\naws_secret_access_key=S\n\
                          [other]\naws_access_key_id = O\naws_secret_access_key = T\n\
                          aws_session_token = token\n"
                .into(),
            config: "[default]\nregion = eu-central-1\n[profile other]\n# region = x\n\
                     region=eu-west-3\nendpoint_url = http://127.0.0.1:9000/\n"
                .into(),
        };
        let variable = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Object::new(bucket, "a dir/key", &variable, &files)
    }

    #[test]
    fn variables_come_before_files_and_profiles_are_told_apart() {
        let of = |variables: &[_]| object(variables, "b").expect("an object");
        let default = of(&[]);
        let place = "https://b.s3.eu-central-1.amazonaws.com/a%20dir/key";
        assert_eq!(default.url.as_str(), place);
        assert_eq!(default.credentials.expect("keys").access_key, "D");
        let other = of(&[("AWS_PROFILE", "other")]);
        assert_eq!(other.url.as_str(), "http://127.0.0.1:9000/b/a%20dir/key");
        assert_eq!(
            (&*other.host, &*other.region),
            ("127.0.0.1:9000", "eu-west-3")
        );
        let keys = other.credentials.expect("keys");
        assert_eq!(
            (&*keys.access_key, keys.session_token.as_deref()),
            ("O", Some("token"))
        );
        let given = of(&[
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", "W"),
            ("AWS_REGION", "us-west-2"),
        ]);
        let keys = given.credentials.expect("keys");
        assert_eq!((&*keys.access_key, keys.session_token), ("V", None));
        assert!(given.url.as_str().contains("us-west-2"));
        let dotted = object(&[], "a.b").expect("an object");
        assert_eq!(dotted.host, "s3.eu-central-1.amazonaws.com");
        assert!(object(&[("AWS_PROFILE", "none")], "b").is_err());
    }
}
