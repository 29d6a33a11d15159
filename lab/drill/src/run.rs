//! Plays a script: moves the clock from event to event, and compares.
//!
//! Must stay true: every outgoing packet is expected by some line, or the script fails at the first
//! line that is later; the clock never waits for anything but the stack's own timers.

use super::bytes;
use super::error::{DrillError, Problem};
use super::files::Files;
use super::flow::Flows;
use super::host::{Host, Sent};
use super::packet::Packet;
use super::pieces::{self, Cut, Join};
use super::script::{Action, Base, Call, Event, Flow, Script, Span, When};
use super::settings::Settings;
use super::values::{self, Progress, Returned};
use std::collections::BTreeMap;

/// Longest wait for a packet that may come at any time, in nanoseconds of virtual time: more than
/// two hours of keepalive idle time.
const ANY_NS: u64 = 10_000_000_000_000;

/// A call that waits.
#[derive(Debug)]
struct Pending {
    line: usize,
    call: Call,
    progress: Progress,
    /// When it is to return, on the virtual clock.
    end_ns: u64,
}

/// A run of a script.
#[derive(Debug)]
pub(crate) struct Run<'s> {
    name: &'s str,
    script: &'s Script,
    pub(super) settings: &'s Settings,
    pub(super) files: Files,
    pub(super) flows: Flows,
    /// Virtual clock at the script's time 0, in nanoseconds.
    begin_ns: u64,
    /// The time of the event before, after the script's begin.
    before_ns: u64,
    pending: Option<Pending>,
    /// The descriptor of the session that was made last, for assertions.
    pub(super) newest: Option<i32>,
    /// Bytes written and read through each descriptor.
    pub(super) written: BTreeMap<i32, u32>,
    pub(super) read: BTreeMap<i32, u32>,
}

impl<'s> Run<'s> {
    pub(crate) fn new(name: &'s str, script: &'s Script) -> Result<Self, DrillError> {
        let settings = &script.settings;
        let mut host = Host::new(settings).map_err(|error| DrillError {
            script: name.to_owned(),
            line: 1,
            problem: Problem::Stack(error),
        })?;
        let begin_ns = host.now_ns();
        while host.take_sent().is_some() {}
        Ok(Self {
            name,
            script,
            settings,
            files: Files::new(host),
            flows: Flows::default(),
            begin_ns,
            before_ns: 0,
            pending: None,
            newest: None,
            written: BTreeMap::new(),
            read: BTreeMap::new(),
        })
    }

    /// Plays all events; returns their number.
    pub(crate) fn all(mut self) -> Result<usize, DrillError> {
        let script = self.script;
        for event in &script.events {
            self.event(event)
                .map_err(|problem| self.fail(event.line, problem))?;
        }
        let last = script.events.last().map_or(1, |event| event.line);
        self.finish_pending()?;
        let end_ns = self.now_ns() + 1;
        self.nothing_left(end_ns)
            .map_err(|problem| self.fail(last, problem))?;
        Ok(script.events.len())
    }

    fn fail(&self, line: usize, problem: Problem) -> DrillError {
        DrillError {
            script: self.name.to_owned(),
            line,
            problem,
        }
    }

    fn now_ns(&mut self) -> u64 {
        self.files.host().now_ns()
    }

    fn tolerance_ns(&self) -> u64 {
        self.settings.tolerance_us.saturating_mul(1_000)
    }

    /// A time of the virtual clock as seconds of the script.
    fn seconds(&self, at_ns: u64) -> f64 {
        (at_ns as f64 - self.begin_ns as f64) / 1e9
    }

    fn event(&mut self, event: &Event) -> Result<(), Problem> {
        let at_ns = match event.when.base {
            Base::Begin => event.when.at_ns,
            Base::Before => self.before_ns + event.when.at_ns,
            Base::Any => self.before_ns,
        };
        if at_ns < self.before_ns {
            let what = "this time is before that of the event before";
            return Err(Problem::Syntax(what.to_owned()));
        }
        if let Action::Expect(flow, packet, cut) = &event.action {
            return self.expect(*flow, packet, cut.as_ref(), event.when, at_ns);
        }
        self.before_ns = at_ns;
        self.advance(self.begin_ns + at_ns)?;
        self.nothing_left((self.begin_ns + at_ns).saturating_sub(self.tolerance_ns()))?;
        match &event.action {
            Action::Inject(flow, packet, cut) => {
                let bytes = self.flows.build(self.settings, *flow, packet);
                let all = match cut {
                    Some(cut) => pieces::split(&bytes, cut, event.line as u32),
                    None => vec![bytes],
                };
                for bytes in all {
                    self.files.host().inject(&bytes);
                }
                self.retry()
            }
            Action::Call(call) => self.call_event(event, call),
            Action::Assert(checks) => checks
                .iter()
                .try_for_each(|check| values::hold(check, &mut self.files, self.newest)),
            Action::Expect(..) => Ok(()),
        }
    }

    /// Advances the time, and retries the waiting call after each event.
    fn advance(&mut self, until_ns: u64) -> Result<(), Problem> {
        while self.files.host().step(until_ns) {
            self.retry()?;
        }
        self.files.host().advance(until_ns);
        self.retry()
    }

    /// No packet that went out before `before_ns` may still be unexpected.
    fn nothing_left(&mut self, before_ns: u64) -> Result<(), Problem> {
        let first = self.files.host().first_sent();
        if first.is_none_or(|sent| sent.at_ns >= before_ns) {
            return Ok(());
        }
        let Some(sent) = self.files.host().take_sent() else {
            return Ok(());
        };
        let (_, packet) = self.look(&sent.packet)?;
        Err(Problem::Unexpected {
            got: packet.to_string(),
            at_s: self.seconds(sent.at_ns),
        })
    }

    /// A packet of the stack in the script's numbers.
    fn look(&mut self, packet: &[u8]) -> Result<(Option<Flow>, Packet), Problem> {
        let broken = |differs, got: String| Problem::Packet {
            differs,
            expected: "a packet that is well formed".to_owned(),
            got,
        };
        let decoded = bytes::decode(packet)
            .map_err(|differs| broken(differs, format!("{} bytes", packet.len())))?;
        let (flow, shown, payload) = self.flows.learn(&decoded, packet);
        payload.map_err(|differs| broken(differs, shown.to_string()))?;
        Ok((flow, shown))
    }

    fn expect(
        &mut self,
        flow: Flow,
        packet: &Packet,
        cut: Option<&Cut>,
        when: When,
        at_ns: u64,
    ) -> Result<(), Problem> {
        let length_ns = match (when.base, when.span) {
            (Base::Any, _) => ANY_NS,
            (_, Span::Until(length_ns)) => length_ns,
            _ => 0,
        };
        let tolerance_ns = self.tolerance_ns();
        let from_ns = (self.begin_ns + at_ns).saturating_sub(tolerance_ns);
        let until_ns = self.begin_ns + at_ns + length_ns + tolerance_ns;
        while self.files.host().first_sent().is_none() {
            if !self.files.host().step(until_ns) {
                self.files.host().advance(until_ns);
                break;
            }
            self.retry()?;
        }
        let Some(sent) = self.files.host().take_sent() else {
            return Err(Problem::Silence {
                expected: packet.to_string(),
                until_s: self.seconds(until_ns),
            });
        };
        let sent = self.whole(sent, cut)?;
        let (found, mut got) = self.look(&sent.packet)?;
        let tolerance_ms = (self.settings.tolerance_us / 1_000 + 1) as u32;
        let differs = if found.is_some_and(|found| found != flow) {
            Some("its flow")
        } else {
            self.flows.differs(flow, packet, &mut got, tolerance_ms)
        };
        if let Some(differs) = differs {
            return Err(Problem::Packet {
                differs,
                expected: packet.to_string(),
                got: format!("{got}, at {:.6}", self.seconds(sent.at_ns)),
            });
        }
        if !(from_ns..=until_ns).contains(&sent.at_ns) && when.base != Base::Any {
            return Err(Problem::Time {
                packet: got.to_string(),
                expected_s: at_ns as f64 / 1e9,
                got_s: self.seconds(sent.at_ns),
            });
        }
        self.before_ns = match (when.base, when.span) {
            (Base::Any, _) | (_, Span::Until(_)) => sent.at_ns.saturating_sub(self.begin_ns),
            _ => at_ns,
        };
        Ok(())
    }

    /// The packet whose first fragment was taken, with all the others; or one that is whole
    /// already.
    fn whole(&mut self, first: Sent, cut: Option<&Cut>) -> Result<Sent, Problem> {
        let Some(cut) = cut else { return Ok(first) };
        let mut join = Join::new(cut);
        let (at_ns, mut next) = (first.at_ns, Some(first));
        while let Some(sent) = next {
            let joined = join.take(&sent.packet).map_err(|differs| Problem::Packet {
                differs,
                expected: format!("a packet in fragments of {} bytes", cut.each),
                got: format!("{} bytes", sent.packet.len()),
            })?;
            if let Some(packet) = joined {
                return Ok(Sent { at_ns, packet });
            }
            // All of them leave together.
            next = self.files.host().take_sent();
        }
        Err(Problem::Silence {
            expected: "the last fragment".to_owned(),
            until_s: self.seconds(at_ns),
        })
    }

    fn call_event(&mut self, event: &Event, call: &Call) -> Result<(), Problem> {
        self.finish_pending().map_err(|error| error.problem)?;
        let mut progress = Progress::default();
        let returned = self.call(call, &mut progress)?;
        let length_ns = match event.when.span {
            Span::Blocks(length_ns) => length_ns,
            _ => 0,
        };
        let end_ns = self.now_ns() + length_ns;
        if returned == Returned::Waits && matches!(event.when.span, Span::Blocks(_)) {
            self.pending = Some(Pending {
                line: event.line,
                call: call.clone(),
                progress,
                end_ns,
            });
            return Ok(());
        }
        self.returned(call, &returned, end_ns)
    }

    /// Compares a call's result and time with the script's.
    fn returned(&mut self, call: &Call, returned: &Returned, end_ns: u64) -> Result<(), Problem> {
        let right = match (returned, call.result, &call.error) {
            (Returned::Value(_), None, _) => true,
            (Returned::Value(got), Some(wanted), None) => *got == wanted,
            (Returned::Error(got), Some(-1), Some(wanted)) => got.to_string() == *wanted,
            (Returned::Error(_), Some(-1), None) => true,
            _ => false,
        };
        if !right {
            let error = call.error.as_ref().map(|error| format!(" {error}"));
            return Err(Problem::Result {
                call: call.name.clone(),
                expected: call.result.map_or("a value".to_owned(), |result| {
                    format!("{result}{}", error.unwrap_or_default())
                }),
                got: returned.to_string(),
            });
        }
        let now_ns = self.now_ns();
        if now_ns.abs_diff(end_ns) > self.tolerance_ns() {
            return Err(Problem::ReturnTime {
                call: call.name.clone(),
                expected_s: self.seconds(end_ns),
                got_s: self.seconds(now_ns),
            });
        }
        Ok(())
    }

    /// The waiting call tries again.
    fn retry(&mut self) -> Result<(), Problem> {
        let Some(mut pending) = self.pending.take() else {
            return Ok(());
        };
        match self.call(&pending.call, &mut pending.progress)? {
            Returned::Waits => {
                self.pending = Some(pending);
                Ok(())
            }
            returned => self.returned(&pending.call, &returned, pending.end_ns),
        }
    }

    /// The waiting call must return by its time.
    fn finish_pending(&mut self) -> Result<(), DrillError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let (line, end_ns) = (pending.line, pending.end_ns);
        let until_ns = end_ns + self.tolerance_ns();
        self.advance(until_ns)
            .map_err(|problem| self.fail(line, problem))?;
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        let result = self.returned(&pending.call, &Returned::Waits, end_ns);
        result.map_err(|problem| self.fail(line, problem))
    }
}
