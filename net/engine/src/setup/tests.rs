//! Good configurations, and bad ones with their messages.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use super::*;
use crate::{Ecn, Placement};

const GOOD: &str = r#"
[nic]
kind = "tap"
name = "sidecore0"
host = ["10.77.0.1/24"]
[stack]
addresses = ["10.77.0.2/24", "fd77::2/64"]
routes = [{ network = "0.0.0.0/0", gateway = "10.77.0.1" }]
"#;

#[test]
fn a_configuration_is_read() {
    let setup = Setup::parse(GOOD).unwrap();
    let config = setup.stack.config().unwrap();
    assert_eq!(config.addresses.len(), 2);
    assert_eq!(config.routes[0].network.prefix_bits, 0);
    assert_eq!(config.congestion, Config::default().congestion);
    assert_eq!(config.placement, Placement::MainMemory);
    assert_eq!(config.hops, Config::default().hops);
    let local = GOOD.replace("[stack]", "[stack]\nplacement = \"local-store\"\nhops = 9");
    let local = Setup::parse(&local).unwrap().stack.config().unwrap();
    assert_eq!((local.placement, local.hops), (Placement::LocalStore, 9));
    assert!(config.pacing);
    let text = GOOD.replace("[stack]", "[stack]\npacing = false");
    assert!(!Setup::parse(&text).unwrap().stack.config().unwrap().pacing);
    assert_eq!(config.ecn, Ecn::Passive);
    for (name, ecn) in [
        ("off", Ecn::Off),
        ("passive", Ecn::Passive),
        ("active", Ecn::Active),
        ("accurate", Ecn::Accurate),
    ] {
        let text = GOOD.replace("[stack]", &format!("[stack]\necn = \"{name}\""));
        assert_eq!(
            Setup::parse(&text).unwrap().stack.config().unwrap().ecn,
            ecn
        );
    }
    assert_ne!(config.seed, setup.stack.config().unwrap().seed);
}

#[test]
fn taps_of_two_stacks_have_addresses_of_their_own() {
    let of = |name: &str, own: &str| super::nic::derived_address(name, &[own.to_owned()]);
    let one = of("sc0", "10.77.0.2/24");
    assert_eq!(one, of("sc0", "10.77.0.2/24"));
    assert_ne!(one, of("sc1", "10.77.0.2/24"));
    assert_ne!(one, of("sc0", "10.77.0.3/24"));
    // Locally administered, and no group's.
    assert_eq!(one[0] & 3, 2);
}

#[test]
fn the_memory_budget_is_read() {
    let text = GOOD.replace("[stack]", "[stack]\nmemory = 67108864");
    let config = Setup::parse(&text).unwrap().stack.config().unwrap();
    assert_eq!(config.buffers_bytes, 64 << 20);
    let text = GOOD.replace("[stack]", "[stack]\nmemory = 4096");
    let refused = Setup::parse(&text).unwrap().stack.config();
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("16777216"), "{error}");
}

#[test]
fn what_makes_no_sense_is_named() {
    let said = |text: &str| match Setup::parse(text) {
        Err(error) => error.to_string(),
        Ok(setup) => match setup.stack.config().map(|_| setup.open_nics(1)) {
            Err(error) | Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) => panic!("accepted: {text}"),
        },
    };
    for (from, to, expected) in [
        ("[stack]", "[stack]\nadresses = []", "adresses"),
        ("10.77.0.2/24", "10.77.0.2", "like 10.77.0.2/24"),
        ("\"tap\"", "\"dpdk\"", "tap, packet, xdp or"),
        ("[stack]", "[stack]\ncongestion = \"vegas\"", "reno or bbr"),
        ("[stack]", "[stack]\necn = \"on\"", "active or accurate"),
        ("[stack]", "[stack]\nplacement = \"spe\"", "local-store"),
        ("[nic]", "[nic]\naddress = \"01:2\"", "six bytes"),
        ("[nic]", "[nic", "docs/net.md lists"),
    ] {
        let text = GOOD.replace(from, to);
        assert!(said(&text).contains(expected), "{}", said(&text));
    }
}

#[test]
fn engines_have_a_core_each_or_none() {
    let cores = |text: &str| {
        let setup = Setup::parse(&format!("{GOOD}\n[engine]\n{text}")).unwrap();
        setup.engine.cores().map_err(|error| error.to_string())
    };
    assert_eq!(cores(""), Ok(vec![None]));
    assert_eq!(cores("cpu = 1"), Ok(vec![Some(1)]));
    assert_eq!(cores("count = 3"), Ok(vec![None; 3]));
    assert_eq!(cores("cpus = [2, 0]"), Ok(vec![Some(2), Some(0)]));
    assert_eq!(
        cores("count = 2\ncpus = [2, 0]"),
        Ok(vec![Some(2), Some(0)])
    );
    for (text, expected) in [
        ("count = 0", "1 to 64"),
        ("count = 65", "1 to 64"),
        ("count = 3\ncpus = [2, 0]", "one core for each"),
        ("count = 2\ncpu = 1", "engine.cpus"),
        ("cpu = 1\ncpus = [1]", "engine.cpus"),
    ] {
        let said = cores(text).unwrap_err();
        assert!(said.contains(expected), "{text}: {said}");
    }
}

#[test]
fn a_fault_names_its_file() {
    let missing = Setup::read(Path::new("/proc/none")).unwrap_err();
    assert_eq!(missing.to_string(), "cannot read /proc/none");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.toml");
    std::fs::write(&path, GOOD).unwrap();
    assert!(Setup::read(&path).is_ok());
    std::fs::write(&path, "[nic]\nkind = 1\n").unwrap();
    let said = sidecore_bare::text::causes(&Setup::read(&path).unwrap_err());
    let expected = format!("{}: line 2: ", path.display());
    assert!(said.starts_with(&expected), "{said}");
}
