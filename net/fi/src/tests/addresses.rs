//! Addresses in C's forms, and the arguments of `fi_getinfo` that name them.

use super::*;
use crate::info::{address_of, raw_address};
use std::net::SocketAddr;

/// The address at the front of some bytes.
fn read(bytes: &[u8], length: usize) -> Option<SocketAddr> {
    assert!(length <= bytes.len());
    // SAFETY: that number of bytes.
    unsafe { address_of(bytes.as_ptr().cast(), length) }
}

#[test]
fn addresses_come_back_as_they_were_written() {
    for (text, bytes) in [
        ("127.0.0.1:80", 16),
        ("0.0.0.0:0", 16),
        ("255.255.255.255:65535", 16),
        ("[::1]:7174", 28),
        ("[2001:db8::7]:65535", 28),
    ] {
        let address: SocketAddr = text.parse().expect("an address");
        let raw = raw_address(address);
        assert_eq!(raw.len(), bytes, "{text}");
        assert_eq!(read(&raw, bytes), Some(address));
        // Also where the buffer is longer, and not aligned.
        let longer = [&[0xff][..], &raw, &[0xff; 9]].concat();
        assert_eq!(read(&longer[1..], bytes + 9), Some(address));
        // One that is cut off is none: its end would be other memory.
        for short in 0..bytes {
            assert_eq!(read(&raw, short), None, "{text} {short}");
        }
    }
    // The layout of sockaddr_in: family, port and address in network order.
    let raw = raw_address("1.2.3.4:258".parse().expect("an address"));
    assert_eq!(raw[2..8], [1, 2, 1, 2, 3, 4]);
}

#[test]
fn other_families_are_no_addresses() {
    for family in [libc::AF_UNSPEC, libc::AF_UNIX, libc::AF_PACKET, libc::AF_IB] {
        let mut raw = [0; 32];
        let family = u16::try_from(family).expect("small");
        raw[..2].copy_from_slice(&family.to_ne_bytes());
        assert_eq!(read(&raw, 32), None, "{family}");
    }
    // SAFETY: NULL.
    assert_eq!(unsafe { address_of(ptr::null(), 16) }, None);
}

fn source(offers: &Offers) -> Option<SocketAddr> {
    let info = offers.first();
    // SAFETY: an address of an offer, as long as it says.
    unsafe { address_of(info.src_addr, info.src_addrlen) }
}

fn destination(offers: &Offers) -> Option<SocketAddr> {
    let info = offers.first();
    // SAFETY: an address of an offer, as long as it says.
    unsafe { address_of(info.dest_addr, info.dest_addrlen) }
}

fn parsed(text: &str) -> Option<SocketAddr> {
    Some(text.parse().expect("an address"))
}

#[test]
fn a_node_is_this_side_s_or_the_other_s_as_the_flag_says() {
    let (node, service) = (Some(c"127.0.0.1"), Some(c"7174"));
    let own = Hints::all().offers_to(API, node, service, FI_SOURCE);
    let own = own.expect("an offer");
    assert_eq!(
        (source(&own), destination(&own)),
        (parsed("127.0.0.1:7174"), None)
    );
    let other = Hints::all()
        .offers_to(API, node, service, 0)
        .expect("an offer");
    assert_eq!(destination(&other), parsed("127.0.0.1:7174"));
    // From an address of the same kind, whose port is not the other side's.
    let from = source(&other).expect("an address");
    assert!(from.ip().is_loopback() && from.port() == 0, "{from}");
    assert_eq!(other.count(), 1);
}

#[test]
fn names_are_resolved_unless_that_is_forbidden() {
    let named = Hints::all()
        .offers(Some(c"localhost"), 0)
        .expect("an offer");
    assert!(destination(&named).expect("resolved").ip().is_loopback());
    let nodes = [c"localhost", c"", c"127.0.0.1.", c"no such host"];
    for node in nodes {
        let refused = Hints::all().offers(Some(node), FI_NUMERICHOST);
        assert_eq!(refused.err(), Some(-libc::ENODATA), "{node:?}");
    }
    let numeric = Hints::all().offers(Some(c"::1"), FI_NUMERICHOST);
    if let Ok(numeric) = numeric {
        assert_eq!(destination(&numeric), parsed("[::1]:0"));
        assert_eq!(numeric.first().addr_format, FI_SOCKADDR_IN6);
    }
}

#[test]
fn a_node_or_service_that_is_no_text_or_no_port_is_no_offer() {
    for service in [c"no-such-service", c"65536", c"-1", c"", c"\xff"] {
        let refused = Hints::all().offers_to(API, Some(c"127.0.0.1"), Some(service), 0);
        assert_eq!(refused.err(), Some(-libc::ENODATA), "{service:?}");
    }
    // It was taken for no node at all, and everything was offered.
    let refused = Hints::all().offers(Some(c"\xff\xfe"), 0);
    assert_eq!(refused.err(), Some(-libc::ENODATA));
}

#[test]
fn addresses_of_the_hints_serve_where_no_node_is_given() {
    let mut raw = raw_address("127.0.0.1:4791".parse().expect("an address"));
    let mut hints = Hints::all();
    (hints.info.src_addr, hints.info.src_addrlen) = (raw.as_mut_ptr().cast(), raw.len());
    let own = hints.offers(None, 0).expect("an offer");
    assert_eq!(
        (source(&own), destination(&own)),
        (parsed("127.0.0.1:4791"), None)
    );
    let mut hints = Hints::all();
    (hints.info.dest_addr, hints.info.dest_addrlen) = (raw.as_mut_ptr().cast(), raw.len());
    let other = hints.offers(None, 0).expect("an offer");
    assert_eq!(destination(&other), parsed("127.0.0.1:4791"));
    // A node of the arguments goes before.
    let node = hints.offers(Some(c"127.0.0.2"), 0).expect("an offer");
    assert_eq!(destination(&node), parsed("127.0.0.2:0"));
    // Any address of this side keeps its port.
    let mut any = raw_address("0.0.0.0:4791".parse().expect("an address"));
    let mut hints = Hints::all();
    (hints.info.src_addr, hints.info.src_addrlen) = (any.as_mut_ptr().cast(), any.len());
    let own = hints.offers(None, 0).expect("offers");
    assert_eq!(source(&own).map(|address| address.port()), Some(4791));
}

#[test]
fn hints_of_a_side_that_the_arguments_name_are_ignored() {
    let mut raw = raw_address("192.0.2.7:4791".parse().expect("an address"));
    let mut hints = Hints::all();
    (hints.info.src_addr, hints.info.src_addrlen) = (raw.as_mut_ptr().cast(), raw.len());
    let (node, service) = (Some(c"127.0.0.1"), Some(c"7174"));
    let own = hints.offers_to(API, node, service, FI_SOURCE);
    assert_eq!(source(&own.expect("an offer")), parsed("127.0.0.1:7174"));
    // Also where the arguments have a service alone.
    let any = hints.offers_to(API, None, service, FI_SOURCE);
    let any = source(&any.expect("offers")).expect("an address");
    assert_eq!(any.port(), 7174);
    assert_ne!(any.ip(), parsed("192.0.2.7:0").expect("an address").ip());
    // The flag without a node and a service is an error of the program.
    assert_eq!(hints.offers(None, FI_SOURCE).err(), Some(-libc::EINVAL));
    let mut hints = Hints::all();
    (hints.info.dest_addr, hints.info.dest_addrlen) = (raw.as_mut_ptr().cast(), raw.len());
    let other = hints.offers_to(API, None, service, 0).expect("an offer");
    assert_eq!(destination(&other), parsed("127.0.0.1:7174"));
    let own = hints.offers_to(API, node, service, FI_SOURCE);
    let own = own.expect("an offer");
    assert_eq!(
        (source(&own), destination(&own)),
        (parsed("127.0.0.1:7174"), parsed("192.0.2.7:4791"))
    );
}

#[test]
fn an_address_of_the_hints_that_does_not_fit_is_no_offer() {
    let mut four = raw_address("127.0.0.1:5".parse().expect("an address"));
    let mut six = raw_address("[::1]:5".parse().expect("an address"));
    let mut hints = Hints::all();
    (hints.info.src_addr, hints.info.src_addrlen) = (four.as_mut_ptr().cast(), four.len());
    assert!(hints.offers(None, 0).is_ok());
    // Cut off, of another format, and of another kind than the other side's.
    hints.info.src_addrlen -= 1;
    assert_eq!(hints.offers(None, 0).err(), Some(-libc::ENODATA));
    hints.info.src_addrlen += 1;
    hints.info.addr_format = FI_SOCKADDR_IN6;
    assert_eq!(hints.offers(None, 0).err(), Some(-libc::ENODATA));
    hints.info.addr_format = FI_SOCKADDR;
    (hints.info.dest_addr, hints.info.dest_addrlen) = (six.as_mut_ptr().cast(), six.len());
    assert_eq!(hints.offers(None, 0).err(), Some(-libc::ENODATA));
}

#[test]
fn a_format_chooses_among_addresses() {
    let mut hints = Hints::all();
    hints.info.addr_format = FI_SOCKADDR_IN;
    let offers = hints.offers(None, 0).expect("offers");
    let mut at = offers.0;
    // SAFETY: the links of the list are valid, or NULL at its end.
    while let Some(info) = unsafe { at.as_ref() } {
        assert_eq!(info.addr_format, FI_SOCKADDR_IN);
        at = info.next;
    }
}

#[test]
fn a_node_may_be_a_formatted_address() {
    for (node, expected) in [
        (c"fi_sockaddr_in://127.0.0.1:7471", Some("127.0.0.1:7471")),
        (c"fi_sockaddr://127.0.0.1", Some("127.0.0.1:0")),
        (
            c"fi_sockaddr://127.0.0.1:7471/0?qos=3",
            Some("127.0.0.1:7471"),
        ),
        (c"fi_sockaddr_in://:7471", Some("127.0.0.1:7471")),
        (c"fi_sockaddr_in6://127.0.0.1:7471", None),
        (c"fi_sockaddr_in6://[::1]7471", None),
        (c"fi_sockaddr_in://127.0.0.1:65536", None),
    ] {
        let offers = Hints::all().offers(Some(node), FI_NUMERICHOST);
        let found = offers.ok().and_then(|offers| destination(&offers));
        assert_eq!(found, expected.and_then(parsed), "{node:?}");
    }
    let both = Hints::all().offers_to(API, Some(c"fi_sockaddr://127.0.0.1"), Some(c"1"), 0);
    assert_eq!(both.err(), Some(-libc::EINVAL));
}

#[test]
fn a_fabric_is_named_by_its_network() {
    let of = |node| {
        let offers = Hints::all().offers(Some(node), FI_SOURCE | FI_NUMERICHOST);
        offers.expect("an offer").network().to_owned()
    };
    assert_eq!(of(c"127.0.0.1"), "127.0.0.0/8");
    // One that is not of this side is a network of its own.
    assert_eq!(of(c"192.0.2.7"), "192.0.2.7/32");
    assert_eq!(of(c"2001:db8::7"), "2001:db8::7/128");
}
