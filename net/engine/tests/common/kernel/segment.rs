//! TCP segments on a wire, parsed without the stack's code, which must not check itself.
//!
//! Source: RFC 791, RFC 8200, RFC 9293 section 3.1, RFC 7323, RFC 2018.

/// TCP segment decoded from a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) ports: [u16; 2],
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) flags: u8,
    /// As in the header, not scaled.
    pub(crate) window: u16,
    pub(crate) payload_bytes: usize,
    /// The kinds of its options, in order; 1 is a NOP.
    pub(crate) kinds: Vec<u8>,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) stamps: Option<(u32, u32)>,
    pub(crate) blocks: Vec<(u32, u32)>,
    /// True if the checksums of IPv4 and of TCP, and all lengths, are correct.
    pub(crate) intact: bool,
}

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// Offset of TCP's header; none in other frames.
pub(crate) fn transport_at(frame: &[u8]) -> Option<usize> {
    match (frame.get(12..14)?, frame.get(14)? >> 4) {
        ([8, 0], 4) => {
            let at = 14 + usize::from(frame[14] & 15) * 4;
            (*frame.get(23)? == TCP).then_some(at)
        }
        ([0x86, 0xdd], 6) => (*frame.get(20)? == TCP).then_some(54),
        _ => None,
    }
}

impl Segment {
    /// None without a complete TCP header. A damaged one may have any fields.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let at = transport_at(frame)?;
        let v4 = frame[12] == 8;
        let ip_end = if v4 {
            14 + usize::from(half(frame, 16)?)
        } else {
            54 + usize::from(half(frame, 18)?)
        };
        let tcp = frame.get(at..)?;
        let start = usize::from(*tcp.get(12)? >> 4) * 4;
        let whole = start >= 20 && start <= tcp.len() && ip_end == frame.len();
        let addresses = if v4 {
            frame.get(26..34)?
        } else {
            frame.get(22..54)?
        };
        let pseudo = sum(TCP.into(), addresses) + tcp.len() as u64;
        let intact = whole
            && fold(sum(pseudo, tcp)) == 0xffff
            && (!v4 || fold(sum(0, frame.get(14..at)?)) == 0xffff);
        let mut segment = Self {
            ports: [half(tcp, 0)?, half(tcp, 2)?],
            sequence: word(tcp, 4)?,
            acknowledgment: word(tcp, 8)?,
            flags: *tcp.get(13)?,
            window: half(tcp, 14)?,
            payload_bytes: tcp.len().saturating_sub(start),
            kinds: Vec::new(),
            mss: None,
            scale: None,
            stamps: None,
            blocks: Vec::new(),
            intact,
        };
        if whole {
            segment.intact &= segment.take_options(&tcp[20..start]).is_some();
        }
        Some(segment)
    }

    fn take_options(&mut self, mut options: &[u8]) -> Option<()> {
        while let Some(&kind) = options.first() {
            if kind == 0 {
                break;
            }
            self.kinds.push(kind);
            if kind == 1 {
                options = &options[1..];
                continue;
            }
            let length = usize::from(*options.get(1)?);
            let body = options.get(2..length)?;
            match kind {
                2 => self.mss = Some(half(body, 0)?),
                3 => self.scale = Some(*body.first()?),
                5 => {
                    for at in (0..body.len()).step_by(8) {
                        self.blocks.push((word(body, at)?, word(body, at + 4)?));
                    }
                }
                8 => self.stamps = Some((word(body, 0)?, word(body, 4)?)),
                _ => {}
            }
            options = &options[length..];
        }
        Some(())
    }

    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The sequence number after it.
    pub(crate) fn end(&self) -> u32 {
        let ends = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.sequence.wrapping_add(self.payload_bytes as u32 + ends)
    }
}

impl std::fmt::Display for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (flag, letter) in [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (8, 'P'), (ACK, '.')] {
            if self.has(flag) {
                write!(f, "{letter}")?;
            }
        }
        write!(f, " {}+{}", self.sequence, self.payload_bytes)?;
        write!(f, " ack {} win {}", self.acknowledgment, self.window)?;
        if let Some((value, echo)) = self.stamps {
            write!(f, " ts {value}/{echo}")?;
        }
        for (start, end) in &self.blocks {
            write!(f, " sack {start}-{end}")?;
        }
        match (self.mss, self.scale) {
            (None, None) => Ok(()),
            (mss, scale) => write!(f, " mss {mss:?} scale {scale:?}"),
        }
    }
}

/// True if `a` comes before `b`.
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn sum(begin: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(2).fold(begin, |sum, pair| {
        sum + (u64::from(pair[0]) << 8) + u64::from(*pair.get(1).unwrap_or(&0))
    })
}

fn fold(mut sum: u64) -> u64 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

const TCP: u8 = 6;
