//! Mounts that are written, copied, unmounted, forced, signalled, stopped and killed, in every
//! order that a seed makes: nothing that was acknowledged is lost without a word, and nothing is
//! left.
//!
//! The kernel, the overlay's file and the clock are a model; the decisions of the server and of the
//! commands are those that run. Before each step of a command anything else may happen, steps of
//! the server and another command included. `SIDECORE_ENDINGS=100000` makes it long; a failure says
//! its seed, which `SIDECORE_ENDINGS_SEED` takes.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // A failure here is a failed test.

use super::*;
use sidecore_random::Random;
use std::collections::{BTreeSet, VecDeque};

/// State of a write that was reported to a program as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// In the kernel's memory.
    Dirty,
    /// With the server.
    Given,
    Durable,
    /// Lost, and an error was reported.
    Reported,
    /// Gone, without a word.
    Lost,
}

struct Server {
    ending: Ending,
    act: Act,
    inbox: VecDeque<Event>,
    is_stopped: bool,
    /// It cannot make its data durable.
    is_failing: bool,
}

/// The machine.
struct World {
    random: Random,
    now: Duration,
    writable: bool,
    writes: Vec<Written>,
    /// Namespaces that have the mount; 0 is that of the server and the commands.
    namespaces: BTreeSet<u64>,
    /// Files open through the mount in namespace 0, and elsewhere or through one that was detached.
    open_here: u32,
    open_elsewhere: u32,
    /// References that commands hold for a moment.
    held: u32,
    /// The superblock is there.
    is_alive: bool,
    /// It fails all requests, after a flush.
    is_shut: bool,
    /// The connection was cut.
    is_cut: bool,
    disk_full: bool,
    server: Option<Server>,
    was_killed: bool,
    ended: Option<bool>,
    depth: u32,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let writable = random.below(4) > 0;
        let ending = Ending::new(Terms {
            writable,
            patience: Duration::from_secs(if writable { 8 } else { 1 }),
        });
        let act = ending.begin();
        Self {
            random,
            now: Duration::ZERO,
            writable,
            writes: Vec::new(),
            namespaces: BTreeSet::from([0]),
            open_here: 0,
            open_elsewhere: 0,
            held: 0,
            is_alive: true,
            is_shut: false,
            is_cut: false,
            disk_full: false,
            server: Some(Server {
                ending,
                act,
                inbox: VecDeque::new(),
                is_stopped: false,
                is_failing: false,
            }),
            was_killed: false,
            ended: None,
            depth: 0,
            log: Vec::new(),
        }
    }

    fn say(&mut self, text: impl Into<String>) {
        self.log.push(text.into());
    }

    fn move_all(&mut self, from: Written, to: Written) {
        for write in &mut self.writes {
            if *write == from {
                *write = to;
            }
        }
    }

    fn answers(&self) -> bool {
        !self.is_cut && self.server.as_ref().is_some_and(|it| !it.is_stopped)
    }

    /// The kernel writes out its dirty data; true if it could.
    fn write_out(&mut self) -> bool {
        if !self.answers() {
            return false;
        }
        self.move_all(Written::Dirty, Written::Given);
        true
    }

    fn make_durable(&mut self) -> bool {
        if !self.disk_full {
            self.move_all(Written::Given, Written::Durable);
        }
        !self.disk_full
    }

    fn flush(&mut self) -> bool {
        self.is_alive && self.write_out() && self.make_durable()
    }

    /// Frees the superblock if it has no users left.
    fn let_go(&mut self) {
        let users = self.open_here + self.open_elsewhere + self.held;
        if !self.is_alive || users > 0 || !self.namespaces.is_empty() {
            return;
        }
        if self.server.as_ref().is_some_and(|it| it.is_stopped) && !self.is_cut {
            // The kernel waits in the unmount until the server continues.
            self.server.as_mut().unwrap().is_stopped = false;
        }
        self.write_out();
        let fate = match self.was_killed {
            true => Written::Reported,
            false => Written::Lost,
        };
        self.move_all(Written::Dirty, fate);
        self.is_alive = false;
        self.say("  the kernel lets go");
        if let Some(server) = &mut self.server {
            server.inbox.push_back(Event::Released);
        }
    }

    fn unmount_here(&mut self) -> Unmounted {
        if self.namespaces.contains(&0) && self.open_here > 0 {
            return Unmounted::Busy;
        }
        self.namespaces.remove(&0);
        self.let_go();
        Unmounted::Gone
    }

    fn detach_here(&mut self) {
        self.namespaces.remove(&0);
        self.open_elsewhere += std::mem::take(&mut self.open_here);
        self.let_go();
    }

    fn put_back_here(&mut self) -> bool {
        // Others may have mounted there meanwhile.
        self.is_alive && !self.is_shut && self.namespaces.insert(0)
    }

    /// One step of the server, if it has one to take.
    fn step_server(&mut self) {
        let Some(server) = &mut self.server else {
            return;
        };
        if server.is_stopped {
            return;
        }
        let act = server.act;
        let event = match act {
            Act::Wait(until) => match server.inbox.pop_front() {
                Some(event) => event,
                None if until.is_some_and(|until| until <= self.now) => Event::Time,
                None => return,
            },
            Act::Flush => Event::Done(self.flush() || !self.is_alive),
            Act::Unmount => Event::Unmounted(self.unmount_here()),
            Act::Detach => {
                self.detach_here();
                Event::Done(true)
            }
            Act::PutBack => Event::Done(self.put_back_here()),
            Act::Pull => Event::Done(self.pull()),
            Act::Abort => {
                assert!(
                    !self.writable || self.is_shut || !self.is_alive,
                    "users were cut off while they could write"
                );
                self.is_cut = true;
                Event::Released
            }
            Act::Close => Event::Closed(match self.make_durable() {
                true => Closed::Durable,
                false => Closed::Later,
            }),
            Act::End { lost } => {
                self.ended = Some(lost);
                self.server = None;
                // The process's end closes the connection, and its last act takes away what a
                // command may have put back.
                self.is_cut = true;
                self.detach_here();
                self.say("  the server has ended");
                return;
            }
        };
        let now = self.now;
        let server = self.server.as_mut().unwrap();
        server.is_failing = event == Event::Closed(Closed::Later);
        server.act = server.ending.next(event, now);
        let text = format!("  server: {act:?} {event:?} -> {:?}", server.act);
        self.say(text);
    }

    fn pull(&mut self) -> bool {
        // One in three file systems cannot be shut down.
        if self.writable && self.is_alive && self.random.below(3) == 0 {
            return false;
        }
        if self.writable && self.is_alive {
            self.is_shut = true;
            self.write_out();
        }
        true
    }

    /// Anything that programs, people and the machine may do.
    fn disturb(&mut self) {
        for _ in 0..self.random.below(4) {
            self.now += Duration::from_millis(self.random.below(2000));
            match self.random.below(24) {
                0..5 => self.step_server(),
                5..8 if self.writable && self.is_alive && !self.is_shut && !self.is_cut => {
                    self.writes.push(Written::Dirty);
                    self.say(format!("  write {}", self.writes.len() - 1));
                }
                8 if self.namespaces.contains(&0) => self.open_here += 1,
                9 => {
                    self.open_here = self.open_here.saturating_sub(1);
                    self.let_go();
                }
                10 => {
                    self.open_elsewhere = self.open_elsewhere.saturating_sub(1);
                    self.let_go();
                }
                11 if self.namespaces.contains(&0) => {
                    let copy = 1 + self.random.below(3);
                    self.namespaces.insert(copy);
                    self.say("  a namespace copies the mount");
                }
                12 => {
                    let copy = 1 + self.random.below(3);
                    self.namespaces.remove(&copy);
                    self.let_go();
                }
                // The kernel's own write-back.
                13 | 14 if self.is_alive => {
                    self.write_out();
                }
                15 | 16 => {
                    if let Some(server) = &mut self.server {
                        server.inbox.push_back(Event::Signal);
                        self.say("  signal");
                    }
                }
                17 => self.disk_full = !self.disk_full && self.random.below(2) == 0,
                18 => {
                    // umount(8), which does not know Sidecore.
                    self.unmount_here();
                }
                19 if self.random.below(4) == 0 => self.detach_here(),
                20 => {
                    if let Some(server) = &mut self.server {
                        server.is_stopped = !server.is_stopped;
                    }
                }
                21 if self.random.below(12) == 0 && self.server.is_some() => {
                    self.kill();
                }
                22 if self.depth < 2 => self.command(),
                _ => {}
            }
        }
    }

    /// `kill -9`: data that was not made durable is lost, as from a disk that is pulled, and the
    /// next command reports it.
    fn kill(&mut self) {
        self.say("  kill -9");
        self.server = None;
        self.was_killed = true;
        self.is_cut = true;
        self.move_all(Written::Given, Written::Reported);
        self.move_all(Written::Dirty, Written::Reported);
    }

    /// `umount`, with and without force.
    fn command(&mut self) {
        let force = self.random.below(3) == 0;
        if self.server.is_none() || !self.namespaces.contains(&0) {
            return;
        }
        self.depth += 1;
        self.held += 1;
        self.server.as_mut().unwrap().is_stopped = false;
        let mut before = self.writes.len();
        let (writable, mounted) = (self.writable, self.namespaces.len());
        self.say(format!("umount, force {force}"));
        let outcome = undo(
            &mut Command {
                world: self,
                holds: true,
                written: &mut before,
            },
            writable,
            force,
        );
        self.say(format!("umount: {outcome:?}"));
        self.depth -= 1;
        let done = matches!(outcome, Outcome::Completely | Outcome::StillUsed);
        if done && !self.was_killed {
            for (number, write) in self.writes[..before].iter().enumerate() {
                assert_eq!(*write, Written::Durable, "write {number} at status 0");
            }
        }
        if outcome == Outcome::Busy {
            assert!(mounted > 0);
        }
    }

    /// All users of the mount close it, the disk has room again, and the server has its time.
    fn settle(&mut self) {
        self.disk_full = false;
        self.open_here = 0;
        self.open_elsewhere = 0;
        if let Some(server) = &mut self.server {
            server.is_stopped = false;
        }
        self.namespaces.retain(|&namespace| namespace == 0);
        self.let_go();
        for round in 0..200 {
            if round == 100
                && let Some(server) = &mut self.server
            {
                server.inbox.push_back(Event::Signal);
            }
            self.now += Duration::from_millis(200);
            self.step_server();
        }
    }

    fn check(&self) {
        assert!(self.server.is_none(), "the server does not end");
        for (number, write) in self.writes.iter().enumerate() {
            let kept = matches!(write, Written::Durable | Written::Reported);
            assert!(kept, "write {number} is {write:?}");
            let excused = self.was_killed || self.ended == Some(true);
            assert!(*write == Written::Durable || excused, "write {number}");
        }
        if !self.was_killed {
            assert!(!self.namespaces.contains(&0), "a mount is left");
        }
    }
}

/// A command's hands, between whose steps anything may happen.
struct Command<'w> {
    world: &'w mut World,
    /// Holds the superblock, to flush it after the unmount.
    holds: bool,
    /// Writes that were done when it was unmounted.
    written: &'w mut usize,
}

impl Command<'_> {
    fn let_go(&mut self) {
        if std::mem::take(&mut self.holds) {
            self.world.held -= 1;
            self.world.let_go();
        }
    }
}

impl Drop for Command<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Hands for Command<'_> {
    fn flush(&mut self) -> bool {
        self.world.disturb();
        self.world.flush()
    }

    fn unmount(&mut self) -> Unmounted {
        self.world.disturb();
        *self.written = self.world.writes.len();
        self.world.unmount_here()
    }

    fn detach(&mut self) -> bool {
        self.world.disturb();
        *self.written = self.world.writes.len();
        self.world.detach_here();
        true
    }

    fn put_back(&mut self) -> bool {
        self.world.disturb();
        self.world.put_back_here()
    }

    fn abort(&mut self) {
        assert!(!self.world.writable, "a mount that takes writes was cut");
        self.world.is_cut = true;
        if let Some(server) = &mut self.world.server {
            server.inbox.push_back(Event::Released);
        }
    }

    fn look(&mut self) -> Seen {
        self.let_go();
        self.world.disturb();
        self.world.now += Duration::from_millis(100);
        self.world.step_server();
        match &mut self.world.server {
            None if self.world.was_killed || self.world.ended == Some(true) => Seen::Failing,
            None => Seen::Ended,
            Some(server) if server.is_failing => Seen::Failing,
            Some(server) if server.ending.is_released() => Seen::Ending,
            // Stopped again meanwhile, with nothing left to lose.
            Some(server) if server.is_stopped => Seen::Stuck,
            Some(_) if self.world.is_alive && !self.world.is_cut => Seen::Held,
            Some(_) => Seen::Ending,
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn nothing_acknowledged_is_lost_whatever_comes_in_which_order() {
    let chosen = variable("SIDECORE_ENDINGS_SEED");
    let first = chosen.unwrap_or(0x3500_0000);
    let runs = match chosen {
        Some(_) => 1,
        None => variable("SIDECORE_ENDINGS").unwrap_or(20_000),
    };
    let mut ended = [0; 3];
    for seed in first..first + runs {
        let mut world = World::new(seed);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..3 + world.random.below(20) {
                world.disturb();
            }
            world.settle();
            world.check();
        }));
        if let Err(panic) = result {
            for line in &world.log {
                println!("{line}");
            }
            println!("SIDECORE_ENDINGS_SEED={seed} shows it again");
            std::panic::resume_unwind(panic);
        }
        let how = match (world.was_killed, world.is_shut) {
            (true, _) => 2,
            (_, shut) => usize::from(shut),
        };
        ended[how] += 1;
    }
    // Every kind of end was tried.
    assert!(
        chosen.is_some() || ended.iter().all(|&count| count > 0),
        "{ended:?}"
    );
}
