//! `doctor`, from the outside.

use std::process::Command;

#[test]
fn it_says_what_is_there_and_how_to_have_what_is_not() {
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        command.arg("doctor").args(arguments).output().unwrap()
    };
    let output = doctor(&["--json"]);
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let offers = report["offers"].as_array().unwrap();
    let text = String::from_utf8(doctor(&[]).stdout).unwrap();
    for offer in offers {
        let name = offer["name"].as_str().unwrap();
        assert!(text.contains(name), "{name}");
        let there = offer["there"].as_bool().unwrap();
        assert!(!there || offer["remedy"].is_null(), "{offer}");
    }
    // The tests' own machine has these, or none of the other tests would run.
    for name in ["FUSE", "cores", "fusermount3"] {
        let named = |offer: &&serde_json::Value| offer["name"] == name;
        assert!(offers.iter().any(|offer| named(&offer)), "{name}");
    }
}
