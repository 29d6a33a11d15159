//! Values of the file that name one of a few: congestion control, ECN, and the like.

use super::{SetupError, value};
use crate::{Algorithm, Ecn, Placement};
use sidecore_net_stack::Behaviour;

/// `stack.congestion`.
pub(super) fn congestion(named: Option<&str>) -> Result<Algorithm, SetupError> {
    let choices = [
        ("cubic", Algorithm::Cubic),
        ("reno", Algorithm::Reno),
        ("bbr", Algorithm::Bbr),
    ];
    let rule = "it may be cubic, reno or bbr";
    choice("stack.congestion", named, &choices, rule)
}

/// `stack.behaviour`.
pub(super) fn behaviour(named: Option<&str>) -> Result<Behaviour, SetupError> {
    let choices = [
        ("standard", Behaviour::Standard),
        ("linux", Behaviour::Linux),
    ];
    let rule = "it may be standard or linux";
    choice("stack.behaviour", named, &choices, rule)
}

/// `stack.ecn`.
pub(super) fn ecn(named: Option<&str>) -> Result<Ecn, SetupError> {
    let choices = [
        ("off", Ecn::Off),
        ("passive", Ecn::Passive),
        ("active", Ecn::Active),
        ("accurate", Ecn::Accurate),
    ];
    let rule = "it may be off, passive, active or accurate";
    choice("stack.ecn", named, &choices, rule)
}

/// `stack.placement`.
pub(super) fn placement(named: Option<&str>) -> Result<Placement, SetupError> {
    let choices = [
        ("main-memory", Placement::MainMemory),
        ("local-store", Placement::LocalStore),
    ];
    let rule = "it may be main-memory or local-store";
    choice("stack.placement", named, &choices, rule)
}

/// The choice that the file names under this key, or the default.
fn choice<T: Copy + Default>(
    key: &'static str,
    named: Option<&str>,
    choices: &[(&str, T)],
    rule: &'static str,
) -> Result<T, SetupError> {
    let Some(named) = named else {
        return Ok(T::default());
    };
    let found = choices.iter().find(|(name, _)| *name == named);
    found
        .map(|(_, choice)| *choice)
        .ok_or_else(|| value(key, named, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_behaviour_is_named_or_the_standards() {
        assert_eq!(behaviour(None).unwrap(), Behaviour::Standard);
        assert_eq!(behaviour(Some("linux")).unwrap(), Behaviour::Linux);
        let error = behaviour(Some("bsd")).unwrap_err().to_string();
        assert!(error.contains("standard or linux"), "{error}");
    }
}
