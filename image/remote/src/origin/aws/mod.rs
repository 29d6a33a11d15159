//! An object of an S3 store: its URL, and its requests, signed with the current keys.
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
use reqwest::Url;
use reqwest::blocking::Client;
use reqwest::header::{HeaderMap, RANGE};
use std::collections::HashMap;

/// An object of a store.
pub(super) struct Object {
    url: Url,
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
        let path = utf8_percent_encode(key, RESERVED);
        let url = match endpoint {
            Some(endpoint) => format!("{}/{bucket}/{path}", endpoint.trim_end_matches('/')),
            // A certificate for `*.s3...` does not cover a bucket name with dots.
            None if bucket.contains('.') => {
                format!("https://s3.{region}.amazonaws.com/{bucket}/{path}")
            }
            None => format!("https://{bucket}.s3.{region}.amazonaws.com/{path}"),
        };
        let url = parse(&url)?;
        if url.host_str().is_none() {
            return Err(Fault::Final("the endpoint names no host".into()));
        }
        Ok(Self {
            url,
            signer: RequestSigner::new("s3", &region),
            keys: Keys::new(context, &region),
        })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// The current keys, and the headers of a request for a range, signed with them now.
    pub(super) fn headers(&self, range: &str) -> Result<(Option<Credential>, HeaderMap), Fault> {
        let keys = self.keys.current()?;
        let unsigned = |error: &dyn std::fmt::Display| {
            Fault::Passing(format!("the request cannot be signed: {error}"))
        };
        // Signed for each attempt: a signature is valid for some minutes only.
        let request = http::Request::get(self.url.as_str()).header(RANGE, range);
        let request = request.body(()).map_err(|error| unsigned(&error))?;
        let (mut head, ()) = request.into_parts();
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

#[cfg(test)]
mod tests;
