//! Which frames a capture wants: a small expression over hosts, ports and protocols.
//!
//! The words are those of pcap-filter(7), of which this has a part: `host`, `net`, `port`,
//! `portrange`, each with `src` or `dst` before it, `proto`, names of protocols, also before one of
//! these, `and`, `or`, `not` and parentheses. Must stay true: any text is parsed or refused with
//! the place of its fault; any frame is judged in bounded time, and none of it is changed. Pure.
//!
//! ```
//! use sidecore_net::capture::Filter;
//!
//! let filter = Filter::parse("tcp and not (port 22 or src net 10.0.0.0/8)")?;
//! assert!(!filter.matches(b"no frame of TCP"));
//! assert!(Filter::parse("port http").is_err());
//! # Ok::<(), sidecore_net::capture::CaptureError>(())
//! ```

use super::CaptureError;
use std::net::IpAddr;

/// A filter of frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(Test);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    All,
    Not(Box<Test>),
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
    /// EtherType.
    Link(u16),
    /// The protocol of the transport.
    Transport(u8),
    Net(Side, IpAddr, u8),
    Port(Side, u16, u16),
}

/// Which end of a frame is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Either,
    Both,
    Source,
    Destination,
}

impl Side {
    /// True if the test holds for the ends of this side.
    fn holds<T>(self, [source, destination]: [T; 2], test: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => test(source),
            Self::Destination => test(destination),
            Self::Either => test(source) || test(destination),
            Self::Both => test(source) && test(destination),
        }
    }
}

/// The fields that tests look at; none where a frame has no such field.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    kind: u16,
    ips: Option<[IpAddr; 2]>,
    protocol: Option<u8>,
    ports: Option<[u16; 2]>,
}

impl Filter {
    /// Parses an expression; an empty one wants all frames.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn parse(text: &str) -> Result<Self, CaptureError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(fault(format!(
                "{} bytes, of at most {TEXT_BYTES_MAX}",
                text.len()
            )));
        }
        let spaced = text
            .replace('(', " ( ")
            .replace(')', " ) ")
            .replace('!', " ! ");
        let mut words = Words {
            words: spaced.split_whitespace().collect(),
            at: 0,
            depth: 0,
        };
        if words.words.is_empty() {
            return Ok(Self(Test::All));
        }
        let test = words.any_of()?;
        match words.peek() {
            None => Ok(Self(test)),
            Some(word) => Err(fault(format!("`{word}` after a complete expression"))),
        }
    }

    /// True if a capture wants the frame: its bytes from the Ethernet header on, of which those
    /// behind the transport's ports are not looked at.
    #[must_use]
    pub fn matches(&self, frame: &[u8]) -> bool {
        // The usual filter costs nothing.
        self.0 == Test::All || self.0.holds(&Facts::of(frame))
    }
}

impl Test {
    fn holds(&self, facts: &Facts) -> bool {
        match self {
            Self::All => true,
            Self::Not(test) => !test.holds(facts),
            Self::And(one, other) => one.holds(facts) && other.holds(facts),
            Self::Or(one, other) => one.holds(facts) || other.holds(facts),
            Self::Link(kind) => facts.kind == *kind,
            Self::Transport(protocol) => facts.protocol == Some(*protocol),
            Self::Net(side, net, bits) => {
                let within = |ip| is_within(ip, *net, *bits);
                facts.ips.is_some_and(|ips| side.holds(ips, within))
            }
            Self::Port(side, first, last) => {
                let within = |port| (*first..=*last).contains(&port);
                facts.ports.is_some_and(|ports| side.holds(ports, within))
            }
        }
    }
}

/// True if the first `bits` bits of two addresses of one family are the same.
pub(crate) fn is_within(ip: IpAddr, net: IpAddr, bits: u8) -> bool {
    // A prefix of no bits shifts out everything, so it has every address.
    let shift = |width: u32| width - u32::from(bits).min(width);
    match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) => {
            let differs = ip.to_bits() ^ net.to_bits();
            differs.checked_shr(shift(32)).unwrap_or(0) == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) => {
            let differs = ip.to_bits() ^ net.to_bits();
            differs.checked_shr(shift(128)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// A prefix: an address, and the number of its bits, all of them if none is given.
///
/// # Errors
/// The fault, for a message.
pub(crate) fn parse_prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(ip, bits)| (ip, Some(bits)));
    let ip: IpAddr = address
        .parse()
        .map_err(|_| format!("`{address}` is no IP address"))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let Some(bits) = bits else {
        return Ok((ip, most));
    };
    let number = bits.parse().ok().filter(|bits| *bits <= most);
    number
        .map(|bits| (ip, bits))
        .ok_or_else(|| format!("`/{bits}` is not 0 to {most}"))
}

/// The words of an expression, and how far it is parsed.
struct Words<'t> {
    words: Vec<&'t str>,
    at: usize,
    /// Open parentheses and negations: the parser calls itself for each.
    depth: usize,
}

impl<'t> Words<'t> {
    fn peek(&self) -> Option<&'t str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self, wanted: &str) -> Result<&'t str, CaptureError> {
        let word = self
            .peek()
            .ok_or_else(|| fault(format!("{wanted} is missing at the end")))?;
        self.at += 1;
        Ok(word)
    }

    fn take(&mut self, words: [&str; 2]) -> bool {
        let is_next = self.peek().is_some_and(|word| words.contains(&word));
        self.at += usize::from(is_next);
        is_next
    }

    fn any_of(&mut self) -> Result<Test, CaptureError> {
        let mut test = self.all_of()?;
        while self.take(["or", "||"]) {
            test = Test::Or(Box::new(test), Box::new(self.all_of()?));
        }
        Ok(test)
    }

    fn all_of(&mut self) -> Result<Test, CaptureError> {
        let mut test = self.one()?;
        while self.take(["and", "&&"]) {
            test = Test::And(Box::new(test), Box::new(self.one()?));
        }
        Ok(test)
    }

    fn one(&mut self) -> Result<Test, CaptureError> {
        self.depth += 1;
        // The engine parses what other processes send: the stack must hold any text.
        if self.depth > DEPTH_MAX {
            return Err(fault(format!(
                "more than {DEPTH_MAX} parentheses and negations"
            )));
        }
        let test = if self.take(["not", "!"]) {
            Test::Not(Box::new(self.one()?))
        } else if self.take(["(", "("]) {
            let test = self.any_of()?;
            if !self.take([")", ")"]) {
                return Err(fault("`)` is missing".to_owned()));
            }
            test
        } else {
            self.primitive()?
        };
        self.depth -= 1;
        Ok(test)
    }

    fn primitive(&mut self) -> Result<Test, CaptureError> {
        let side = self.side();
        let ends = side.unwrap_or(Side::Either);
        let word = self.next("a test")?;
        match word {
            "host" | "net" => {
                let (ip, bits) = parse_prefix(self.next("an address")?).map_err(fault)?;
                return Ok(Test::Net(ends, ip, bits));
            }
            "port" => {
                let port = port(self.next("a port")?)?;
                return Ok(Test::Port(ends, port, port));
            }
            "portrange" => {
                let range = self.next("a range of ports")?;
                let (first, last) = range
                    .split_once('-')
                    .ok_or_else(|| fault(format!("`{range}` is not A-B")))?;
                return Ok(Test::Port(ends, port(first)?, port(last)?));
            }
            _ => {}
        }
        if let Some(side) = side {
            // There, `host` and `net` may be left out.
            let prefix = parse_prefix(word);
            let wrong = |_| fault(format!("`{word}` after `src` or `dst`"));
            let (ip, bits) = prefix.map_err(wrong)?;
            return Ok(Test::Net(side, ip, bits));
        }
        let test = match word {
            "proto" => return self.transport(),
            "ip" => Test::Link(IPV4),
            "ip6" => Test::Link(IPV6),
            "arp" => Test::Link(ARP),
            _ => {
                let number = protocol(word);
                Test::Transport(number.ok_or_else(|| fault(format!("`{word}` is no test")))?)
            }
        };
        // Both have to hold. It is no protocol again, so that this goes one level down only.
        if self.peek().is_some_and(|next| QUALIFIED.contains(&next)) {
            return Ok(Test::And(Box::new(test), Box::new(self.primitive()?)));
        }
        Ok(test)
    }

    /// The sides that are named, as `src`, or `src and dst`.
    fn side(&mut self) -> Option<Side> {
        let (side, other) = match self.peek()? {
            "src" => (Side::Source, "dst"),
            "dst" => (Side::Destination, "src"),
            _ => return None,
        };
        self.at += 1;
        let joined = match self.words.get(self.at..self.at + 2) {
            Some(["or", word]) if *word == other => Side::Either,
            Some(["and", word]) if *word == other => Side::Both,
            _ => return Some(side),
        };
        self.at += 2;
        Some(joined)
    }

    /// The protocol after `proto`.
    fn transport(&mut self) -> Result<Test, CaptureError> {
        let word = self.next("a protocol")?;
        let number = protocol(word).or_else(|| word.parse().ok());
        let wrong = || fault(format!("`{word}` is no protocol, by name or number"));
        number.map(Test::Transport).ok_or_else(wrong)
    }
}

/// The number of a transport, or of what is in its place (IANA).
fn protocol(name: &str) -> Option<u8> {
    Some(match name {
        "icmp" => 1,
        "igmp" => 2,
        "tcp" => TCP,
        "udp" => UDP,
        "gre" => 47,
        "esp" => 50,
        "ah" => 51,
        "icmp6" => 58,
        "sctp" => 132,
        _ => return None,
    })
}

fn port(text: &str) -> Result<u16, CaptureError> {
    text.parse().map_err(|_| {
        fault(format!(
            "`{text}` is no port, which is a number up to 65535"
        ))
    })
}

fn fault(reason: String) -> CaptureError {
    CaptureError::Filter { reason }
}

impl Facts {
    fn of(frame: &[u8]) -> Self {
        let half = |at: usize| {
            let bytes = frame.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map(|bytes| u16::from_be_bytes(*bytes))
        };
        let (mut kind, mut at) = (half(12).unwrap_or_default(), 14);
        for _ in 0..TAGS_MAX {
            if kind != VLAN && kind != SERVICE_VLAN {
                break;
            }
            // IEEE 802.1Q: behind a tag stands the type that it replaced.
            (kind, at) = (half(at + 2).unwrap_or_default(), at + 4);
        }
        let mut facts = Self {
            kind,
            ..Self::default()
        };
        let packet = frame.get(at..).unwrap_or_default();
        match kind {
            IPV4 => facts.read_v4(packet),
            IPV6 => facts.read_v6(packet),
            ARP => facts.read_arp(packet),
            _ => None,
        };
        facts
    }

    /// The addresses of a request and its answer, which `host` and `net` mean, too (RFC 826).
    fn read_arp(&mut self, packet: &[u8]) -> Option<()> {
        let message = packet.first_chunk::<28>()?;
        // IPv4, with six octets of hardware address and four of its own.
        if message[2..6] != [8, 0, 6, 4] {
            return None;
        }
        let ip = |at: usize| message[at..].first_chunk::<4>().map(|it| IpAddr::from(*it));
        self.ips = Some([ip(14)?, ip(24)?]);
        Some(())
    }

    fn read_v4(&mut self, packet: &[u8]) -> Option<()> {
        let header = packet.first_chunk::<20>()?;
        let ip = |at: usize| header[at..].first_chunk::<4>().map(|it| IpAddr::from(*it));
        self.ips = Some([ip(12)?, ip(16)?]);
        self.protocol = Some(header[9]);
        let offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
        // Only a packet's first fragment has the ports.
        if offset == 0 {
            self.read_ports(packet.get(usize::from(header[0] & 15) * 4..)?)?;
        }
        Some(())
    }

    fn read_v6(&mut self, packet: &[u8]) -> Option<()> {
        let header = packet.first_chunk::<40>()?;
        let ip = |at: usize| header[at..].first_chunk::<16>().map(|it| IpAddr::from(*it));
        self.ips = Some([ip(8)?, ip(24)?]);
        let (mut next, mut rest) = (header[6], packet.get(40..)?);
        for _ in 0..EXTENSIONS_MAX {
            let bytes = match next {
                // Hop-by-hop and destination options, routing (RFC 8200 section 4).
                0 | 43 | 60 => 8 + 8 * usize::from(*rest.get(1)?),
                FRAGMENT => 8,
                _ => break,
            };
            let is_later =
                next == FRAGMENT && u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]) >> 3 != 0;
            next = *rest.first()?;
            // Only the first fragment has the headers behind.
            if is_later {
                self.protocol = Some(next);
                return None;
            }
            rest = rest.get(bytes..)?;
        }
        self.protocol = Some(next);
        self.read_ports(rest)
    }

    fn read_ports(&mut self, segment: &[u8]) -> Option<()> {
        if !matches!(self.protocol, Some(TCP | UDP)) {
            return None;
        }
        let [a, b, c, d] = *segment.first_chunk()?;
        self.ports = Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
        Some(())
    }
}

/// Bytes of an expression, at most.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;
const DEPTH_MAX: usize = 32;
/// Words that may follow the name of a protocol.
const QUALIFIED: [&str; 7] = ["src", "dst", "host", "net", "port", "portrange", "proto"];
/// VLAN tags, and IPv6 extension headers, that are stepped over.
const TAGS_MAX: usize = 2;
const EXTENSIONS_MAX: usize = 8;
/// EtherTypes (IEEE 802 numbers) and protocols (IANA).
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, offset: u16, ports: [u16; 2]) -> Vec<u8> {
        let mut frame = [&[0; 12][..], &[8, 0, 0x46], &[0; 5]].concat();
        frame.extend(offset.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 1, 192, 0, 2, 7, 1, 1, 1, 1]);
        frame.extend(ports.map(u16::to_be_bytes).concat());
        frame
    }

    fn v6(extensions: &[u8], first: u8) -> Vec<u8> {
        let mut frame = [&[0; 12][..], &[0x81, 0, 0, 5, 0x86, 0xdd, 0x60], &[0; 5]].concat();
        frame.extend([first, 64]);
        for last in [1, 2] {
            frame.extend([0xfd, 0]);
            frame.extend([0; 13]);
            frame.push(last);
        }
        frame.extend(extensions);
        frame.extend([0, 53, 1, 0]);
        frame
    }

    fn matches(text: &str, frame: &[u8]) -> bool {
        Filter::parse(text).unwrap().matches(frame)
    }

    #[test]
    fn frames_are_told_apart_by_ends_and_protocols() {
        let frame = v4(TCP, 0, [40_000, 443]);
        for wanted in [
            "",
            "tcp",
            "ip",
            "host 10.0.0.1",
            "dst host 192.0.2.7",
            "src net 10.0.0.0/8",
            "net 0.0.0.0/0",
            "port 443",
            "dst port 443 and src port 40000",
            "portrange 400-500",
            "not udp",
            "!udp",
            "udp or (tcp and not port 22)",
            "not not tcp",
            "tcp port 443",
            "tcp dst port 443 and ip src host 10.0.0.1",
            "src 10.0.0.1 and dst 192.0.2.0/24",
            "src or dst port 443",
            "src and dst portrange 1-50000",
            "proto 6",
            "ip proto tcp",
        ] {
            assert!(matches(wanted, &frame), "{wanted}");
        }
        for other in [
            "udp",
            "ip6",
            "arp",
            "icmp",
            "dst host 10.0.0.1",
            "src port 443",
            "net 10.1.0.0/16",
            "host fd00::1",
            "not tcp",
            "udp or tcp and port 22",
            "udp port 443",
            "ip6 host 10.0.0.1",
            "src and dst port 443",
            "proto 17",
            "ip6 proto 6",
        ] {
            assert!(!matches(other, &frame), "{other}");
        }
        let later = v4(UDP, 100, [53, 53]);
        assert!(matches("udp", &later) && !matches("port 53", &later));
    }

    #[test]
    fn hosts_of_arp_are_those_that_it_asks_about() {
        let mut frame = [&[0; 12][..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend([[0; 6].as_slice(), &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 7]].concat());
        assert!(matches("arp host 10.0.0.7 and src 10.0.0.1", &frame));
        assert!(matches("net 10.0.0.0/24 and not ip", &frame));
        assert!(!matches("host 10.0.0.2", &frame));
        assert!(!matches("host 10.0.0.7", &frame[..frame.len() - 1]));
        // Addresses of another kind.
        frame[18] = 8;
        assert!(!matches("host 10.0.0.7", &frame));
    }

    #[test]
    fn tags_and_extension_headers_are_stepped_over() {
        let plain = v6(&[], UDP);
        let options = v6(&[UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 60);
        let fragment = v6(&[UDP, 0, 0, 1, 0, 0, 0, 0], FRAGMENT);
        for frame in [plain, options, fragment] {
            assert!(matches(
                "ip6 and udp and src port 53 and dst port 256",
                &frame
            ));
            assert!(matches("src host fd00::1 and net fd00::/64", &frame));
        }
        let later = v6(&[UDP, 0, 0, 9, 0, 0, 0, 0], FRAGMENT);
        assert!(matches("udp", &later) && !matches("port 53", &later));
    }

    #[test]
    fn whatever_is_written_is_parsed_or_refused() {
        for wrong in [
            "port",
            "port 65536",
            "port http",
            "host 10.0.0",
            "net 10.0.0.0/33",
            "src tcp",
            "tcp and",
            "tcp udp",
            "(tcp",
            "tcp)",
            "and",
            "portrange 5",
            "etherhost x",
            "proto 256",
            "proto",
            "tcp port",
            "tcp port udp",
            "src or 10.0.0.1",
            "ip ip6",
        ] {
            let error = Filter::parse(wrong).expect_err(wrong).to_string();
            assert!(
                error.starts_with("filter: ") && error.contains("`host "),
                "{error}"
            );
        }
        let deep = |count| format!("{}tcp", "not ".repeat(count));
        assert!(Filter::parse(&deep(30)).is_ok() && Filter::parse(&deep(40)).is_err());
        assert!(Filter::parse(&"tcp or ".repeat(200)).is_err());
        let frame = v6(&[60, 255, 60, 0], 60);
        for end in 0..frame.len() {
            matches("port 1 or host ::1 or icmp6", &frame[..end]);
        }
    }
}
