//! `doctor`, from the outside.

use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sidecore");

fn report(mut command: Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn it_says_what_is_there_and_how_to_have_what_is_not() {
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("doctor").args(arguments);
        command
    };
    let report = report(doctor(&["--json"]));
    let offers = report["offers"].as_array().unwrap();
    let text = String::from_utf8(doctor(&[]).output().unwrap().stdout).unwrap();
    for offer in offers {
        let name = offer["name"].as_str().unwrap();
        assert!(text.contains(name), "{name}");
        let there = offer["there"].as_bool().unwrap();
        assert!(!there || offer["remedy"].is_null(), "{offer}");
        assert_eq!(there, offer["cause"].is_null(), "{offer}");
    }
    // The tests' own machine has these, or none of the other tests would run.
    for name in ["FUSE", "cores", "fusermount3"] {
        let named = |offer: &&serde_json::Value| offer["name"] == name;
        assert!(offers.iter().any(|offer| named(&offer)), "{name}");
    }
    // The verdicts come last.
    let verdicts: Vec<_> = text.lines().rev().take(5).collect();
    for (line, name) in verdicts
        .iter()
        .rev()
        .zip(["images", "sockets", "trees", "engines", "cell"])
    {
        let (_, verdict) = line.split_once(name).unwrap();
        let words = ["ready", "limited: ", "not available: "];
        assert!(
            words.iter().any(|it| verdict.trim().starts_with(it)),
            "{line}"
        );
    }
    // A program is built with MPI or without, whatever programs the machine has.
    let mpi = offers.iter().find(|offer| offer["name"] == "MPI").unwrap();
    assert!(cfg!(feature = "mpi") || mpi["there"] == false, "{mpi}");
}

#[test]
fn another_cause_has_another_remedy() {
    // A user without rights.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", PROGRAM]);
    command.args(["doctor", "--json"]);
    let of_user = report(command);
    for offer in of_user["offers"].as_array().unwrap() {
        let remedy = offer["remedy"].as_str().unwrap_or_default();
        let found = offer["found"].as_str().unwrap();
        if found.contains("ermission denied") || found.contains("not permitted") {
            assert_eq!(offer["cause"], "permission denied", "{offer}");
            assert!(
                !remedy.contains("modprobe") && !remedy.contains("apt-get"),
                "{offer}"
            );
        }
    }
    // Devices that are not there.
    let script = "mount -t tmpfs none /dev && exec \"$0\" doctor --json";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, PROGRAM]);
    let without = report(command);
    for offer in without["offers"].as_array().unwrap() {
        if offer["found"].as_str().unwrap().starts_with("/dev/") {
            let remedy = offer["remedy"].as_str().unwrap();
            assert!(
                remedy.contains("modprobe") || remedy.contains("CONFIG_"),
                "{offer}"
            );
            assert_ne!(offer["cause"], "permission denied", "{offer}");
        }
    }
    let images = &without["products"][0];
    assert_eq!(images["state"], "limited", "{images}");
}

/// A control group with the time of one core; removed at the end.
struct Quota(std::path::PathBuf);

impl Quota {
    /// `None` where this process may not make one.
    fn of_one_core() -> Option<Self> {
        let name = format!("sidecore-test-{}", std::process::id());
        let group = Self(["/sys/fs/cgroup/cpu", &name].iter().collect());
        std::fs::create_dir(&group.0).ok()?;
        for (file, us) in [
            ("cpu.cfs_period_us", "100000"),
            ("cpu.cfs_quota_us", "100000"),
        ] {
            std::fs::write(group.0.join(file), us).ok()?;
        }
        Some(group)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn a_quota_of_time_counts_as_the_cores_do() {
    let Some(group) = Quota::of_one_core() else {
        eprintln!("NOT TESTED: no control group can be made (root, cgroup version 1)");
        return;
    };
    if sidecore_sys::cpu::allowed().unwrap().len() < 2 {
        return;
    }
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "echo $$ >\"$1\"/cgroup.procs && exec \"$2\" doctor --json",
            "sh",
        ])
        .args([group.0.as_os_str(), PROGRAM.as_ref()]);
    let report = report(command);
    let offers = report["offers"].as_array().unwrap();
    let cores = offers.iter().find(|offer| offer["name"] == "cores");
    let cores = cores.unwrap();
    let found = cores["found"].as_str().unwrap();
    assert!(found.contains("the time of 1"), "{found}");
    assert!(
        cores["remedy"].as_str().unwrap().contains("cpu.max"),
        "{cores}"
    );
}
