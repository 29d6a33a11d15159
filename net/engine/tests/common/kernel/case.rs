//! Test case, drawn from a seed: impairments of a session, and the scripts of its two applications.
//!
//! Some cases have a bottleneck: a link slower than both ends, with a finite queue. Their data is
//! long enough to fill that queue several times.
//!
//! Must stay true: what each application sees depends on the case alone, whatever the timing: a
//! reset, for example, is sent only when the peer has read everything that it can read before.

use crate::common::Random;

/// Impairments of a session's frames; shares in millionths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) loss: u64,
    pub(crate) late: u64,
    pub(crate) twice: u64,
    pub(crate) corrupt: u64,
    /// One-way delay.
    pub(crate) delay_ns: u64,
    /// Additional delay of overtaken frames.
    pub(crate) late_ns: u64,
}

/// A slow link with a queue in front that drops at its tail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bottleneck {
    pub(crate) bits_per_second: u64,
    pub(crate) queue_bytes: u64,
}

impl Bottleneck {
    /// Two of one rate, one for each direction, or one and none.
    fn pair(random: &mut Random) -> [Option<Self>; 2] {
        let bits_per_second = log_uniform(random, 1_000_000, 5);
        let mut one = || {
            // At most half a second's data, or a case would take minutes.
            let queue_bytes = log_uniform(random, 12_000, 5).min(bits_per_second / 16);
            Some(Self {
                bits_per_second,
                queue_bytes,
            })
        };
        match [one(), one()] {
            both if random.happens(500_000) => both,
            [there, _] if random.happens(500_000) => [there, None],
            [_, back] => [None, back],
        }
    }

    /// Bytes in flight, including the round trip, when the queue is full.
    pub(crate) fn held_bytes(&self, delay_ns: u64) -> u64 {
        self.queue_bytes + self.bits_per_second / 8 * (2 * delay_ns) / 1_000_000_000
    }
}

/// Fate of one frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    pub(crate) lost: bool,
    pub(crate) late: bool,
    pub(crate) twice: bool,
    /// The bit to flip, modulo the number of bits.
    pub(crate) corrupt: Option<u64>,
}

impl Weather {
    /// Milder with a bottleneck: at several per cent of loss no sender would fill a queue.
    fn of_bottleneck(random: &mut Random) -> Self {
        let delay_ns = 300_000 + random.below(20_000_000);
        Self {
            loss: pick(random, &[0, 0, 0, 1_000, 10_000]),
            late: pick(random, &[0, 0, 0, 1_000, 20_000]),
            twice: pick(random, &[0, 0, 3_000]),
            corrupt: pick(random, &[0, 0, 0, 1_000]),
            delay_ns,
            late_ns: random.below(2 * delay_ns) + 100_000,
        }
    }

    /// The fate of the `number`th frame of a direction, independent of its sender.
    pub(crate) fn fate(&self, seed: u64, direction: usize, number: u64) -> Fate {
        let mut random = Random(seed ^ (number << 20) ^ ((direction as u64 + 1) << 60));
        random.bits();
        Fate {
            lost: random.happens(self.loss),
            late: random.happens(self.late),
            twice: random.happens(self.twice),
            corrupt: random.happens(self.corrupt).then(|| random.bits()),
        }
    }
}

/// One action of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Writes this many bytes, repeating partial writes.
    Write(usize),
    /// Reads this many bytes.
    Read(usize),
    /// Reads until the end.
    ReadToEnd,
    /// Pauses for this many milliseconds.
    Pause(u64),
    /// Waits until the other lane is finished.
    AfterOther,
    ShutDown,
    Close,
    Reset,
    /// Reads, and occasionally writes a byte, until it fails.
    UntilBroken,
}

/// One of the two applications: its two lanes run concurrently; when both are finished it closes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    pub(crate) lanes: [Vec<Step>; 2],
    pub(crate) no_delay: bool,
    /// TCP_MAXSEG; none if it is not set.
    pub(crate) segment_bytes: Option<u16>,
    pub(crate) receive_bytes: u32,
    pub(crate) send_bytes: u32,
}

/// The whole case.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    /// Seed of the frames' fates: the case's seed, or another number to repeat the same case with
    /// other random losses.
    pub(crate) luck: u64,
    pub(crate) kind: Kind,
    pub(crate) v6: bool,
    pub(crate) weather: Weather,
    /// On the path from the client and from the server.
    pub(crate) bottlenecks: [Option<Bottleneck>; 2],
    /// Scripts of the client and of the server.
    pub(crate) scripts: [Script; 2],
    /// False if the client is to be refused.
    pub(crate) listens: bool,
}

/// Subject of the case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Both send a stream at once.
    Streams,
    /// One replies when the other has sent everything.
    HalfClose,
    /// Requests and replies in turn.
    Turns,
    /// A reader that lets the window fill up.
    FullWindow,
    /// Writes and closes at once.
    CloseAfterWriting,
    /// One resets when the other has read everything.
    Reset,
    /// One resets while the other has unread bytes, which it still gets.
    ResetUnread,
    /// One closes with bytes unread.
    Unread,
    /// One keeps writing after the other has closed.
    WriteOn,
    /// There is no listener.
    Refused,
}

const KINDS: [Kind; 12] = [
    Kind::Streams,
    Kind::HalfClose,
    Kind::Turns,
    Kind::FullWindow,
    Kind::CloseAfterWriting,
    Kind::Reset,
    Kind::ResetUnread,
    Kind::Streams,
    Kind::Unread,
    Kind::WriteOn,
    Kind::Turns,
    Kind::Refused,
];

impl Case {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let kind = KINDS[seed as usize % KINDS.len()];
        let v6 = random.happens(500_000);
        let delay_ns = 50_000 + random.below(3_000_000);
        let mut weather = Weather {
            loss: pick(&mut random, &[0, 0, 10_000, 30_000, 80_000]),
            late: pick(&mut random, &[0, 0, 0, 20_000, 100_000]),
            twice: pick(&mut random, &[0, 0, 30_000]),
            corrupt: pick(&mut random, &[0, 0, 0, 10_000]),
            delay_ns,
            late_ns: random.below(4 * delay_ns) + 100_000,
        };
        let mut bottlenecks = [None; 2];
        // Drawn separately, so that the cases without one stay the same.
        let mut apart = Random(!seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        if apart.happens(BOTTLENECKS) {
            bottlenecks = Bottleneck::pair(&mut apart);
            weather = Weather::of_bottleneck(&mut apart);
        }
        let slow = bottlenecks.iter().flatten();
        let slow = slow.max_by_key(|it| it.held_bytes(weather.delay_ns));
        let mut plan = Plan {
            bad: weather.loss + weather.corrupt > 0,
            fill: slow.map(|it| (it.held_bytes(weather.delay_ns), it.bits_per_second / 8)),
            segment_bytes: 1448,
            random,
        };
        let mut scripts = [plan.script(), plan.script()];
        if slow.is_some() {
            for script in &mut scripts {
                // Neither a buffer nor the overhead of tiny segments may be narrower than the
                // bottleneck.
                (script.receive_bytes, script.send_bytes) = (1 << 20, 1 << 20);
                script.segment_bytes = script.segment_bytes.filter(|&bytes| bytes > 88);
            }
        }
        let requested = |script: &Script| usize::from(script.segment_bytes.unwrap_or(1460));
        plan.segment_bytes = requested(&scripts[0]).min(requested(&scripts[1]));
        let lanes = plan.lanes(kind);
        if kind == Kind::FullWindow {
            let small = 4096 + plan.random.below(12_000) as u32;
            scripts[1].receive_bytes = small;
        }
        for (script, lanes) in scripts.iter_mut().zip(lanes) {
            script.lanes = lanes;
        }
        // Either may begin.
        if kind != Kind::Refused && plan.random.happens(500_000) {
            scripts.swap(0, 1);
        }
        Self {
            seed,
            luck: seed,
            kind,
            v6,
            weather,
            bottlenecks,
            scripts,
            listens: kind != Kind::Refused,
        }
    }

    /// The smaller of both sides' largest segments, in bytes.
    pub(crate) fn segment_bytes(&self) -> u16 {
        let requests = self.scripts.iter().filter_map(|it| it.segment_bytes);
        requests.min().unwrap_or(1460)
    }

    /// Full frames in flight from `side` when its queue is full; 0 without a bottleneck.
    pub(crate) fn held_frames(&self, side: usize) -> usize {
        let held_bytes = |it: Bottleneck| it.held_bytes(self.weather.delay_ns);
        let frame_bytes = u64::from(self.segment_bytes()) + HEADERS_BYTES;
        (self.bottlenecks[side].map_or(0, held_bytes) / frame_bytes) as usize
    }
}

/// A number from `least` to `least << octaves`, with the same probability for each octave.
fn log_uniform(random: &mut Random, least: u64, octaves: u64) -> u64 {
    let from = least << random.below(octaves);
    from + random.below(from)
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

/// Generator of scripts.
struct Plan {
    random: Random,
    /// Frames are lost: then less is sent.
    bad: bool,
    /// For a bottleneck: bytes that fill it, and its rate in bytes a second.
    fill: Option<(u64, u64)>,
    segment_bytes: usize,
}

impl Plan {
    fn script(&mut self) -> Script {
        let random = &mut self.random;
        Script {
            lanes: Default::default(),
            no_delay: random.happens(500_000),
            segment_bytes: pick(random, &[None, None, None, Some(88), Some(536), Some(1200)]),
            receive_bytes: pick(random, &[8192, 40_000, 200_000, 1 << 20]),
            send_bytes: pick(random, &[16_384, 100_000, 1 << 20]),
        }
    }

    /// Total bytes of a case that is sent in one go.
    fn volume(&mut self) -> usize {
        if let Some((held, rate)) = self.fill {
            // Enough for slow start to fill the queue, and for some of CUBIC's periods.
            let most = if self.bad {
                EXTRA_BYTES_MAX / 4
            } else {
                EXTRA_BYTES_MAX
            };
            return (3 * held + self.random.below(2 * rate).min(most)) as usize;
        }
        let segments = if self.bad { 120 } else { 600 };
        let most = segments * self.segment_bytes as u64;
        1 + match self.random.below(4) {
            0 => self.random.below(self.segment_bytes as u64 * 3),
            _ => self.random.below(most),
        } as usize
    }

    /// Writes of random sizes, `bytes` in total.
    fn writes(&mut self, mut bytes: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        while bytes > 0 {
            let mss = self.segment_bytes;
            let size = match self.random.below(8) {
                0 if steps.len() < 40 => 1,
                1 if steps.len() < 40 => mss - 1,
                2 if steps.len() < 40 => mss + 1,
                3 => mss * 4,
                4 => 1 + self.random.below(20_000) as usize,
                5 => 1 + self.random.below(3_000) as usize,
                _ => 65_536,
            };
            let size = size.min(bytes);
            steps.push(Step::Write(size));
            bytes -= size;
            if self.random.happens(60_000) && steps.len() < 100 {
                steps.push(Step::Pause(1 + self.random.below(30)));
            }
        }
        steps
    }

    fn pause(&mut self) -> Vec<Step> {
        match self.random.below(3) {
            0 => vec![Step::Pause(1 + self.random.below(60))],
            _ => Vec::new(),
        }
    }

    /// Both applications' lanes.
    fn lanes(&mut self, kind: Kind) -> [[Vec<Step>; 2]; 2] {
        use Step::{AfterOther, Close, Read, ReadToEnd, ShutDown, UntilBroken, Write};
        match kind {
            Kind::Streams => [(); 2].map(|()| {
                let volume = self.volume();
                let writes = [self.pause(), self.writes(volume), vec![ShutDown]].concat();
                [writes, [self.pause(), vec![ReadToEnd]].concat()]
            }),
            Kind::HalfClose => {
                let volumes = [self.volume(), self.volume()];
                let first = [self.writes(volumes[0]), vec![ShutDown]].concat();
                let answer = [vec![AfterOther], self.writes(volumes[1])].concat();
                [[first, vec![ReadToEnd]], [answer, vec![ReadToEnd]]]
            }
            Kind::Turns => {
                let (mut one, mut two) = (Vec::new(), Vec::new());
                for _ in 0..1 + self.random.below(30) {
                    let [ask, answer] = [(); 2].map(|()| match self.random.below(4) {
                        0 => 1,
                        1 => self.segment_bytes,
                        2 => 1 + self.random.below(200) as usize,
                        _ => 1 + self.random.below(3 * self.segment_bytes as u64) as usize,
                    });
                    one.extend([Write(ask), Read(answer)]);
                    two.extend([Read(ask), Write(answer)]);
                }
                if self.random.happens(500_000) {
                    one.extend([ShutDown, ReadToEnd]);
                    two.push(ReadToEnd);
                } else {
                    two.push(Close);
                    one.push(ReadToEnd);
                }
                [[one, Vec::new()], [two, Vec::new()]]
            }
            Kind::FullWindow => {
                // Its reader's window is narrower than any bottleneck.
                self.fill = None;
                let volume = 60_000 + self.volume();
                let pause = Step::Pause(100 + self.random.below(500));
                let writes = [self.writes(volume), vec![ShutDown]].concat();
                let mut reads = vec![pause];
                if self.random.happens(500_000) {
                    reads.extend([Read(1 + self.random.below(9_000) as usize), pause]);
                }
                reads.push(ReadToEnd);
                [[writes, vec![ReadToEnd]], [reads, Vec::new()]]
            }
            Kind::CloseAfterWriting => {
                let volume = self.volume();
                let writes = [self.writes(volume), vec![Close]].concat();
                let end = if self.random.happens(500_000) {
                    vec![ReadToEnd]
                } else {
                    vec![Read(volume), Close]
                };
                [[writes, Vec::new()], [end, Vec::new()]]
            }
            Kind::Reset => {
                let (ask, answer) = (self.volume(), self.volume());
                let one = [self.writes(ask), vec![Read(answer), Step::Reset]].concat();
                let two = [vec![Read(ask)], self.writes(answer), vec![UntilBroken]].concat();
                [[one, Vec::new()], [two, Vec::new()]]
            }
            Kind::ResetUnread => {
                // One segment: its first byte shows that all of it has arrived.
                let bytes = 2 + self.random.below(self.segment_bytes as u64 / 2) as usize;
                let one = vec![Write(bytes), Read(1), Step::Reset];
                let two = vec![Read(1), Write(1), Step::Pause(100)];
                let two = [two, vec![Read(bytes - 1), UntilBroken]].concat();
                [[one, Vec::new()], [two, Vec::new()]]
            }
            Kind::Unread => {
                // The reply is one segment: its first byte shows that all of it has arrived.
                let answer = 2 + self.random.below(self.segment_bytes as u64 / 2) as usize;
                let ask = self.volume();
                let one = [self.writes(ask), vec![Read(1), Close]].concat();
                let two = vec![Read(ask), Write(answer), UntilBroken];
                [[one, Vec::new()], [two, Vec::new()]]
            }
            Kind::WriteOn => {
                let ask = self.volume();
                let one = [self.writes(ask), vec![ReadToEnd, UntilBroken]].concat();
                let two = vec![Read(ask), Close];
                [[one, Vec::new()], [two, Vec::new()]]
            }
            Kind::Refused => [[vec![Write(1)], Vec::new()], Default::default()],
        }
    }
}

/// Share of the cases with a bottleneck, in millionths.
const BOTTLENECKS: u64 = 400_000;
/// Headers of Ethernet, IPv4 and TCP without options.
const HEADERS_BYTES: u64 = 54;
/// Bytes in addition to those that fill the queue.
const EXTRA_BYTES_MAX: u64 = 2_500_000;
