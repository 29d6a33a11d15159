//! Packets from text.

use super::cursor::{Cursor, Read};
use super::packet::{CODEPOINTS, FLAGS, Icmp, Packet, REASONS, Reason, Tcp, TcpOption};
use super::pieces::Cut;
use super::script::Flow;

/// Flows that a script may have.
const FLOWS_MAX: usize = 4096;
/// Bytes that a packet may carry.
const LEN_MAX: u32 = 65_000;
/// Bytes of a TCP header's options.
const OPTIONS_BYTES_MAX: usize = 40;

/// A packet behind its arrow, with its flow.
pub(crate) fn packet(at: &mut Cursor<'_>) -> Read<(Flow, Packet)> {
    let mut flow = 1;
    let mut ecn = None;
    let mut opened = at.eat("[");
    if opened && at.rest().starts_with(|next: char| next.is_ascii_digit()) {
        flow = at.small()?;
        at.expect("]")?;
        if !(1..=FLOWS_MAX).contains(&flow) {
            return Err(at.wrong("(after the flow's number, 1 to 4096) a packet"));
        }
        opened = at.eat("[");
    }
    if opened {
        let before = *at;
        let name = at.name().unwrap_or_default();
        let known = CODEPOINTS.iter().find(|(other, _)| *other == name);
        let wrong = || before.wrong("a flow's number, or noecn, ect0, ect1 or ce");
        ecn = Some(known.ok_or_else(wrong)?.1);
        at.expect("]")?;
    }
    let before = *at;
    let packet = if at.eat_word("udp") {
        Packet::Udp(in_brackets(at)? as usize)
    } else if at.eat_word("icmp") {
        Packet::Icmp(icmp(at)?)
    } else {
        Packet::Tcp(Tcp { ecn, ..tcp(at)? })
    };
    if ecn.is_some() && !matches!(packet, Packet::Tcp(_)) {
        return Err(before.wrong("TCP, whose ECN field alone is looked at"));
    }
    Ok((flow, packet))
}

/// Fragmentation clause behind a packet; `may_lose`: one fragment may be marked as lost.
pub(crate) fn cut(at: &mut Cursor<'_>, may_lose: bool) -> Read<Option<Cut>> {
    if !at.eat_word("cut") {
        return Ok(None);
    }
    let before = *at;
    let each: usize = at.small()?;
    if each == 0 || !each.is_multiple_of(8) || each > LEN_MAX as usize {
        return Err(before.wrong("a multiple of 8 bytes, at most 65000"));
    }
    let without = if may_lose && at.eat_word("without") {
        Some(at.small()?)
    } else {
        None
    };
    Ok(Some(Cut { each, without }))
}

/// `(LEN)`
fn in_brackets(at: &mut Cursor<'_>) -> Read<u32> {
    at.expect("(")?;
    let before = *at;
    let len: u32 = at.small()?;
    if len > LEN_MAX {
        return Err(before.wrong("at most 65000 bytes"));
    }
    at.expect(")")?;
    Ok(len)
}

/// `FROM:TO(LEN)`
fn range(at: &mut Cursor<'_>) -> Read<(u32, u32)> {
    let from: u32 = at.small()?;
    at.expect(":")?;
    let to: u32 = at.small()?;
    let before = *at;
    let len = in_brackets(at)?;
    if to.wrapping_sub(from) != len {
        return Err(before.wrong("the difference of the two numbers"));
    }
    Ok((from, len))
}

fn tcp(at: &mut Cursor<'_>) -> Read<Tcp> {
    let before = *at;
    let letters =
        at.take_while(|next| next == '-' || FLAGS.iter().any(|(letter, _)| *letter == next));
    let mut flags = 0;
    for letter in letters.chars() {
        let known = FLAGS.iter().find(|(other, _)| *other == letter);
        flags |= known.map_or(0, |(_, bit)| *bit);
    }
    if letters.is_empty() || letters.contains('-') && letters != "-" {
        return Err(before.wrong("`udp`, `icmp` or TCP's flags (S F R P U E W A . or -)"));
    }
    let (sequence, len) = range(at)?;
    let acknowledgment = if at.eat_word("ack") {
        Some(at.small()?)
    } else {
        None
    };
    let window = if at.eat_word("win") {
        Some(at.small()?)
    } else {
        None
    };
    let options = if at.eat("<...>") {
        None
    } else if at.eat("<") {
        Some(options(at)?)
    } else {
        Some(Vec::new())
    };
    Ok(Tcp {
        flags,
        sequence,
        len,
        acknowledgment,
        window,
        options,
        ecn: None,
    })
}

fn options(at: &mut Cursor<'_>) -> Read<Vec<TcpOption>> {
    let mut options: Vec<TcpOption> = Vec::new();
    loop {
        let before = *at;
        options.push(option(at)?);
        let bytes: usize = options.iter().map(TcpOption::bytes).sum();
        if bytes > OPTIONS_BYTES_MAX {
            return Err(before.wrong("at most 40 bytes of options"));
        }
        if at.eat(">") {
            return Ok(options);
        }
        at.expect(",")?;
    }
}

fn option(at: &mut Cursor<'_>) -> Read<TcpOption> {
    let before = *at;
    let wrong = || before.wrong("an option: mss, sackOK, sack, TS val, nop, eol, wscale or kind");
    let option = match at.name().ok_or_else(wrong)? {
        "eol" => TcpOption::End,
        "nop" => TcpOption::Nop,
        "mss" => TcpOption::Mss(at.small()?),
        "wscale" => TcpOption::Scale(at.small()?),
        "sackOK" => TcpOption::SackPermitted,
        "sack" => {
            let mut blocks = Vec::new();
            while at.rest().starts_with(|next: char| next.is_ascii_digit()) {
                let from = at.small()?;
                at.expect(":")?;
                blocks.push((from, at.small()?));
            }
            TcpOption::Sack(blocks)
        }
        "TS" => {
            at.expect("val")?;
            let value = stamp(at)?;
            at.expect("ecr")?;
            TcpOption::Stamps(value, stamp(at)?)
        }
        "kind" => {
            let kind = at.small()?;
            at.expect("len")?;
            let len: u8 = at.small()?;
            TcpOption::Other(kind, usize::from(len))
        }
        _ => return Err(wrong()),
    };
    Ok(option)
}

/// A number, or `*`.
fn stamp(at: &mut Cursor<'_>) -> Read<Option<u32>> {
    if at.eat("*") {
        return Ok(None);
    }
    at.small().map(Some)
}

fn icmp(at: &mut Cursor<'_>) -> Read<Icmp> {
    let before = *at;
    let wrong = || before.wrong("echo_request, echo_reply, net_unreachable … or frag_needed");
    // As the tool that this notation comes from has it.
    at.eat_word("unreachable");
    let name = at.name().ok_or_else(wrong)?;
    if name == "echo_request" || name == "echo_reply" {
        at.expect("id")?;
        let id = at.small()?;
        at.expect("seq")?;
        let number = at.small()?;
        let len = in_brackets(at)? as usize;
        return Ok(if name == "echo_request" {
            Icmp::EchoRequest(id, number, len)
        } else {
            Icmp::EchoReply(id, number, len)
        });
    }
    let reason = REASONS.iter().find(|(other, _)| *other == name);
    let (_, reason) = reason.ok_or_else(wrong)?;
    let mut mtu = 0;
    if *reason == Reason::TooBig {
        at.expect("mtu")?;
        mtu = at.small()?;
    }
    let mut about = None;
    if at.eat("[") {
        about = Some(range(at)?);
        at.expect("]")?;
    }
    Ok(Icmp::Unreachable(*reason, mtu, about))
}
