//! Foreign load: processor time that others used during a measurement.
//!
//! Why here: a round next to a running compiler measures the compiler, too. Load that the
//! measurement itself makes (this process, all that it started, the kernel's threads) is its own.
//! Time of other processes, and time that the hypervisor gave to other machines (steal), is
//! foreign.
//! Must stay true: reading takes no more than milliseconds and changes nothing. Where `/proc`
//! cannot be read nothing is called foreign. The kernel counts ticks of 10 ms, so a time below
//! `JUDGED_S_MIN` is not judged. Any thread. Source: proc(5), `/proc/stat` and `/proc/PID/stat`.
//!
//! ```
//! use sidecore_bench::measure::quiet::Watch;
//!
//! let watch = Watch::begin();
//! // What is to be measured goes here.
//! let foreign = watch.end();
//! if foreign.is_noise() {
//!     println!("{:.0} % stolen: measure again", 100.0 * foreign.steal);
//! }
//! ```

use super::interleave::Judge;
use serde::Serialize;
use sidecore_bare::width::ToU64;
use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Processor time at one moment, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reading {
    /// Ticks of all processes and threads.
    busy: u64,
    /// Ticks given to other virtual machines.
    stolen: u64,
    /// Ticks of this process, of all that it started and of the kernel's threads.
    own: u64,
}

/// A measurement under way.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    before: Reading,
    began: Instant,
}

impl Watch {
    /// Begins to watch.
    #[must_use]
    pub fn begin() -> Self {
        Self {
            before: Reading::take(),
            began: Instant::now(),
        }
    }

    /// Load since [`Watch::begin`].
    #[must_use]
    pub fn end(&self) -> Foreign {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let ticks_per_s = rustix::param::clock_ticks_per_second();
        let elapsed = self.began.elapsed();
        Reading::take().since(&self.before, elapsed, cores, ticks_per_s)
    }
}

/// Foreign load of a whole run, and the rounds repeated because of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Noise {
    /// Rounds that were measured again because they were noisy.
    pub rounds_repeated: usize,
    /// Rounds that were kept although they were noisy: their repeats were used up.
    pub rounds_noisy: usize,
    /// True if such a round was kept.
    pub noisy: bool,
    /// The largest foreign load of a round that was kept.
    pub foreign: Foreign,
}

impl Noise {
    /// The same in words: one line of a report's head.
    #[must_use]
    pub fn line(&self) -> String {
        let (others, steal) = (self.foreign.processes * 100.0, self.foreign.steal * 100.0);
        let kept = match self.noisy {
            true => format!("**noisy**: {} noisy rounds were kept", self.rounds_noisy),
            false => "quiet".to_owned(),
        };
        format!(
            "foreign load: {kept}; rounds repeated: {}; at most {others:.0} % of the cores' time \
             used by other processes, {steal:.0} % stolen",
            self.rounds_repeated
        )
    }

    fn keep(&mut self, foreign: &Foreign) {
        self.foreign = self.foreign.max(foreign);
        if foreign.is_noise() {
            self.rounds_noisy += 1;
            self.noisy = true;
        }
    }
}

/// Repeats noisy rounds, a bounded number of them.
#[derive(Debug)]
pub struct QuietRounds<'n> {
    noise: &'n mut Noise,
    repeats_left: usize,
    watch: Watch,
}

impl<'n> QuietRounds<'n> {
    /// A judge for one comparison; at most `repeats_max` of its rounds are repeated.
    pub fn new(noise: &'n mut Noise, repeats_max: usize) -> Self {
        Self {
            noise,
            repeats_left: repeats_max,
            watch: Watch::begin(),
        }
    }

    fn judge(&mut self, foreign: &Foreign) -> bool {
        if foreign.is_noise() && self.repeats_left > 0 {
            self.repeats_left -= 1;
            self.noise.rounds_repeated += 1;
            return false;
        }
        self.noise.keep(foreign);
        true
    }
}

impl Judge for QuietRounds<'_> {
    fn begin(&mut self) {
        self.watch = Watch::begin();
    }

    /// Blocks for half a second where the round is repeated: the disturbance may be over then.
    fn keep(&mut self) -> bool {
        let keep = self.judge(&self.watch.end());
        if !keep {
            // The foreign program may be a short one.
            std::thread::sleep(PAUSE);
        }
        keep
    }
}

/// The share of the cores' time that was not ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Foreign {
    /// Used by other processes, from 0 to 1.
    pub processes: f64,
    /// Given to other machines by the hypervisor, from 0 to 1.
    pub steal: f64,
}

impl Foreign {
    /// True if the load is large enough to have changed the measurement.
    #[must_use]
    pub fn is_noise(&self) -> bool {
        self.processes > PROCESSES_MAX || self.steal > STEAL_MAX
    }

    /// The larger of each share.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            processes: self.processes.max(other.processes),
            steal: self.steal.max(other.steal),
        }
    }
}

impl Reading {
    fn take() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        // Before the processes: those that end meanwhile then count as foreign, not as ours.
        let (busy, stolen) = machine_ticks(&stat).unwrap_or_default();
        let mut processes = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is_process = entry.file_name().as_encoded_bytes()[0].is_ascii_digit();
            if is_process {
                let text = fs::read_to_string(entry.path().join("stat"));
                // It may have ended since the folder was read.
                processes.extend(text.ok().and_then(|text| Process::parse(&text)));
            }
        }
        let own = own_ticks(&processes, std::process::id());
        Self { busy, stolen, own }
    }

    fn since(&self, before: &Self, elapsed: Duration, cores: usize, ticks_per_s: u64) -> Foreign {
        let seconds = elapsed.as_secs_f64();
        // Ticks are 10 ms: a shorter round cannot be judged.
        if seconds < JUDGED_S_MIN || self.busy == 0 {
            return Foreign::default();
        }
        let ticks = seconds * ticks_per_s as f64 * cores.max(1) as f64;
        let own = self.own.saturating_sub(before.own);
        let others = self.busy.saturating_sub(before.busy).saturating_sub(own);
        // Both ends of the interval fall within a tick on each core, and `own` is read later than
        // `busy`.
        let others = others.saturating_sub(2 * cores.to_u64());
        let stolen = self.stolen.saturating_sub(before.stolen);
        Foreign {
            processes: (others as f64 / ticks).min(1.0),
            steal: (stolen as f64 / ticks).min(1.0),
        }
    }
}

/// The needed fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    ticks: u64,
    is_kernel: bool,
}

impl Process {
    fn parse(text: &str) -> Option<Self> {
        let id = text.split(' ').next()?.parse().ok()?;
        // The name is in brackets and may hold any byte, brackets and spaces among them.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        // Numbered as in proc(5); the name, which may hold spaces, was cut off.
        let number = |field: usize| fields.get(field - FIELD_STATE)?.parse::<i64>().ok();
        let ticks = [FIELD_UTIME, FIELD_STIME, FIELD_CUTIME, FIELD_CSTIME];
        let ticks: Option<i64> = ticks.into_iter().map(number).sum();
        Some(Self {
            id,
            parent: number(FIELD_PARENT)? as u32,
            ticks: ticks? as u64,
            is_kernel: number(FIELD_FLAGS)? & KERNEL_THREAD != 0,
        })
    }
}

/// User, nice, system, interrupts; and steal.
fn machine_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
    let [
        user,
        nice,
        system,
        _idle,
        _wait,
        interrupts,
        soft,
        steal,
        ..,
    ] = fields[..]
    else {
        return None;
    };
    // Interrupts belong to no process; most come from the measurement's own I/O.
    let _ = (interrupts, soft);
    Some((user + nice + system, steal))
}

/// Ticks of `root`, of all its descendants with their waited-for children, and of the kernel's
/// threads.
fn own_ticks(processes: &[Process], root: u32) -> u64 {
    let parents: HashMap<u32, u32> = processes.iter().map(|own| (own.id, own.parent)).collect();
    let is_own = |process: &&Process| {
        let mut id = process.id;
        // As deep as a tree of processes may be; a circle cannot be, but a torn reading may show
        // one.
        for _ in 0..DEPTH_MAX {
            if id == root {
                return true;
            }
            match parents.get(&id) {
                Some(&parent) if parent != 0 => id = parent,
                _ => break,
            }
        }
        // Kernel threads do the I/O of the measurement itself.
        process.is_kernel
    };
    processes.iter().filter(is_own).map(|own| own.ticks).sum()
}

/// Share of the cores' time above which other processes are noise.
pub const PROCESSES_MAX: f64 = 0.05;
/// Share of the cores' time above which stolen time is noise.
pub(crate) const STEAL_MAX: f64 = 0.02;
/// Shortest time that is judged, in seconds: less has too few ticks.
pub(crate) const JUDGED_S_MIN: f64 = 0.1;
/// Pause before a round is repeated.
const PAUSE: Duration = Duration::from_millis(500);
const DEPTH_MAX: usize = 64;
/// Fields are numbered from 1 in proc(5); the third is the first one behind the name.
const FIELD_STATE: usize = 3;
const FIELD_PARENT: usize = 4;
const FIELD_FLAGS: usize = 9;
const FIELD_UTIME: usize = 14;
const FIELD_STIME: usize = 15;
const FIELD_CUTIME: usize = 16;
const FIELD_CSTIME: usize = 17;
/// `PF_KTHREAD` of the kernel's `sched.h`.
const KERNEL_THREAD: i64 = 0x0020_0000;

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32, ticks: u64, is_kernel: bool) -> Process {
        Process {
            id,
            parent,
            ticks,
            is_kernel,
        }
    }

    #[test]
    fn lines_of_proc_are_read_whatever_a_process_calls_itself() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 100 0 0";
        assert_eq!(Process::parse(stat), Some(process(42, 7, 100, false)));
        let kernel = "9 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0 0 5 0 0 20 0 1 0 1 0 0";
        assert_eq!(Process::parse(kernel), Some(process(9, 2, 5, true)));
        assert_eq!(Process::parse("42 (a) S 7"), None);
        let machine = "cpu  10 2 3 1000 50 7 8 6 0 0\ncpu0 1 1 1 1";
        assert_eq!(machine_ticks(machine), Some((15, 6)));
        assert_eq!(machine_ticks("nonsense"), None);
    }

    #[test]
    fn descendants_and_the_kernel_are_ours_and_others_are_not() {
        let all = [
            process(1, 0, 1000, false),
            process(10, 1, 1, false), // this process
            process(11, 10, 2, false),
            process(12, 11, 4, false),
            process(2, 0, 8, true),
            process(20, 1, 16, false), // another program's
            process(30, 31, 32, false),
            process(31, 30, 64, false), // a torn reading
        ];
        assert_eq!(own_ticks(&all, 10), 1 + 2 + 4 + 8);
    }

    #[test]
    fn others_and_steal_are_shares_of_all_cores() {
        let before = Reading::default();
        let after = Reading {
            busy: 104,
            stolen: 10,
            own: 50,
        };
        let second = Duration::from_secs(1);
        let foreign = after.since(&before, second, 2, 100);
        assert_eq!((foreign.processes, foreign.steal), (0.25, 0.05));
        assert!(foreign.is_noise());
        let all_own = Reading { own: 104, ..after };
        let stolen_only = all_own.since(&before, second, 2, 100);
        assert_eq!(stolen_only.processes, 0.0);
        assert!(stolen_only.is_noise(), "steal alone is noise");
        let short = after.since(&before, Duration::from_millis(50), 2, 100);
        assert!(!short.is_noise(), "too short to be judged");
    }

    #[test]
    fn noisy_rounds_are_repeated_until_the_repeats_are_used_up() {
        let quiet = Foreign::default();
        let busy = Foreign {
            processes: 0.5,
            steal: 0.0,
        };
        let mut noise = Noise::default();
        let mut rounds = QuietRounds::new(&mut noise, 2);
        let kept = [quiet, busy, quiet, busy, busy].map(|foreign| rounds.judge(&foreign));
        assert_eq!(kept, [true, false, true, false, true]);
        assert_eq!(
            (noise.rounds_repeated, noise.rounds_noisy, noise.noisy),
            (2, 1, true)
        );
        assert_eq!(noise.foreign, busy);
        assert!(noise.line().contains("**noisy**: 1"), "{}", noise.line());
        assert!(!Noise::default().line().contains("noisy"));
    }

    #[test]
    fn a_child_of_ours_is_no_foreign_load() {
        let before = Reading::take();
        let ticks_per_s = rustix::param::clock_ticks_per_second();
        // Some tens of milliseconds of a core, in a grandchild that is waited for; how much the
        // kernel sees of it depends on where its ticks fall.
        let script = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; true";
        let mut own = 0;
        for _ in 0..100 {
            let mut child = std::process::Command::new("sh");
            child.args(["-c", script]).status().unwrap();
            own = Reading::take().own - before.own;
            if own as f64 >= 0.02 * ticks_per_s as f64 {
                return;
            }
        }
        panic!("{own} ticks");
    }
}
