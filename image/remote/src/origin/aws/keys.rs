//! The current access keys: looked up where other tools find them, and again before they expire and
//! when the store refuses them.
//!
//! Sources in order: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; a web
//! identity (`AWS_ROLE_ARN`, `AWS_WEB_IDENTITY_TOKEN_FILE`); the profile's keys, sign-on or
//! `credential_process`; a container's service (`AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or
//! `_FULL_URI`); the instance's role. The last one is queried only after the store has refused a
//! request without keys: other machines have no such service, and public buckets need no keys.
//!
//! Must stay true: valid keys stay in use while no newer ones are available; a source that fails is
//! queried again at most once in [`AGAIN_AFTER`].

use super::Fault;
use super::host::wait;
use parking_lot::Mutex;
use reqsign_aws_v4::{
    AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider,
    EnvCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider,
    ProfileCredentialProvider, SSOCredentialProvider,
};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, ProvideCredentialDyn, SigningCredential};
use std::time::{Duration, Instant};

type Place = Box<dyn ProvideCredentialDyn<Credential = Credential>>;

/// Keys and their sources.
pub(super) struct Keys {
    context: Context,
    places: Vec<(&'static str, Place)>,
    /// Also held while sources are queried: other threads that need keys meanwhile wait for the
    /// result.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    keys: Option<Credential>,
    /// True if the sources have been queried; without keys there are none.
    is_looked_for: bool,
    /// Sources that are queried: all but the last, or all.
    with_instance: bool,
    /// The reason why a source had no keys.
    lacks: Option<String>,
    /// Earliest time of the next query, for expiring keys and for refused ones.
    again: Option<Instant>,
    refused: Option<Instant>,
}

impl Keys {
    /// Keys for requests to `region`.
    pub(super) fn new(context: Context, region: &str) -> Self {
        let session = context.env_var("AWS_ROLE_SESSION_NAME");
        let identity = AssumeRoleWithWebIdentityCredentialProvider::new()
            .with_region(region.to_owned())
            .with_regional_sts_endpoint()
            .with_role_session_name(session.unwrap_or_else(|| "sidecore".into()));
        let places: Vec<(_, Place)> = vec![
            ("variables", Box::new(EnvCredentialProvider::new())),
            ("web identity", Box::new(identity)),
            ("profile", Box::new(ProfileCredentialProvider::new())),
            ("single sign-on", Box::new(SSOCredentialProvider::new())),
            (
                "credential_process",
                Box::new(ProcessCredentialProvider::new()),
            ),
            ("container", Box::new(ECSCredentialProvider::new())),
            ("instance", Box::new(IMDSv2CredentialProvider::new())),
        ];
        Self {
            context,
            places,
            known: Mutex::default(),
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Keys that are valid for a while; `None` if there are none. Blocks while sources are queried.
    ///
    /// # Errors
    /// [`Fault::Passing`]: the known keys have expired, and there are no others.
    pub(super) fn current(&self) -> Result<Option<Credential>, Fault> {
        let mut known = self.known.lock();
        let has_them = known.keys.as_ref().map(SigningCredential::is_valid);
        if has_them.unwrap_or(known.is_looked_for) {
            return Ok(known.keys.clone());
        }
        if known.again.is_none_or(|again| Instant::now() >= again) {
            known.again = Some(Instant::now() + AGAIN_AFTER);
            let found = self.look(&mut known);
            known.is_looked_for = true;
            if found.is_some() {
                known.keys = found;
            }
        }
        // Keys that are about to expire are used until they have.
        let until = Timestamp::now() + REQUEST_MAX;
        match &known.keys {
            Some(keys) if !keys.is_valid_at(until) => Err(Fault::Passing(format!(
                "the keys have expired, and there are no other ones{}",
                known
                    .lacks
                    .as_ref()
                    .map_or(String::new(), |why| format!(": {why}"))
            ))),
            keys => Ok(keys.clone()),
        }
    }

    /// Looks for keys other than the refused ones; true if there are some.
    pub(super) fn renew(&self, refused: Option<&Credential>) -> bool {
        let mut known = self.known.lock();
        let same = |keys: Option<&Credential>| match (keys, refused) {
            (Some(keys), Some(refused)) => {
                keys.access_key_id == refused.access_key_id
                    && keys.secret_access_key == refused.secret_access_key
                    && keys.session_token == refused.session_token
            }
            (None, None) => true,
            _ => false,
        };
        if !same(known.keys.as_ref()) {
            // Another thread has found new keys meanwhile.
            return true;
        }
        if known.refused.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            return false;
        }
        known.with_instance |= refused.is_none();
        let found = self.look(&mut known);
        if found.is_none() || same(found.as_ref()) {
            known.refused = Some(Instant::now());
            return false;
        }
        known.keys = found;
        true
    }

    /// The reason for the lack of keys, if a source failed.
    pub(super) fn lacks(&self) -> Option<String> {
        let known = self.known.lock();
        known.lacks.clone().filter(|_| known.keys.is_none())
    }

    /// Queries the sources in order.
    fn look(&self, known: &mut Known) -> Option<Credential> {
        let mut why = None;
        let last = self.places.len() - usize::from(!known.with_instance);
        for (name, place) in &self.places[..last] {
            match wait(place.provide_credential_dyn(&self.context)) {
                Ok(Some(keys)) if keys.is_valid_at(Timestamp::now() + REQUEST_MAX) => {
                    known.lacks = None;
                    return Some(keys);
                }
                // Variables may be set to the empty string.
                Ok(Some(keys)) if !keys.secret_access_key.is_empty() => {
                    why.get_or_insert_with(|| format!("{name}: its keys have expired"));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!("no keys by {name}: {error}");
                    // The first failure is from the source that the user meant.
                    why.get_or_insert_with(|| format!("{name}: {error}"));
                }
            }
        }
        known.lacks = why;
        None
    }
}

/// Time between two queries of sources that had no keys.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Time for which keys must be valid when a request is signed.
const REQUEST_MAX: Duration = Duration::from_secs(10);
