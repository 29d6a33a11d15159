//! Which hints get an offer, and what it says.

use super::*;
use crate::place::{DEPTH_MAX, INJECT_BYTES};

/// A change of hints, by its name.
type Change = (&'static str, fn(&mut Hints));

fn offered(change: fn(&mut Hints)) -> Result<Offers, c_int> {
    let mut hints = Hints::all();
    change(&mut hints);
    hints.offers(Some(c"127.0.0.1"), FI_SOURCE)
}

#[test]
fn what_the_provider_has_not_is_not_offered() {
    let refused: &[Change] = &[
        ("tags", |hints| hints.info.caps |= 1 << 3),
        ("multicast", |hints| hints.info.caps |= 1 << 5),
        ("an unknown bit", |hints| hints.info.caps |= 1 << 40),
        ("another address format", |hints| hints.info.addr_format = 4),
        ("IPv6 for an address of IPv4", |hints| {
            hints.info.addr_format = FI_SOCKADDR_IN6
        }),
        ("a later protocol", |hints| hints.ep.protocol_version = 2),
        ("longer ordered writes", |hints| {
            hints.ep.max_order_waw_size = (1 << 30) + 1
        }),
        ("capabilities of sends that the endpoint has not", |hints| {
            hints.info.caps = FI_MSG;
            hints.tx.caps = FI_RMA;
        }),
        ("an order of received data", |hints| {
            hints.rx.comp_order = 1 << 16
        }),
        ("an unknown threading", |hints| hints.domain.threading = 6),
        ("many endpoints", |hints| {
            hints.domain.ep_cnt = (1 << 13) + 1
        }),
        ("shared transmit contexts", |hints| {
            hints.domain.max_ep_stx_ctx = 1
        }),
        ("regions of pieces", |hints| hints.domain.mr_iov_limit = 2),
        ("a datagram endpoint", |hints| hints.ep.type_ = 2),
        ("a reliable datagram endpoint", |hints| hints.ep.type_ = 3),
        ("another protocol", |hints| hints.ep.protocol = 3),
        ("longer messages", |hints| {
            hints.ep.max_msg_size = (1 << 30) + 1
        }),
        ("two transmit contexts", |hints| hints.ep.tx_ctx_cnt = 2),
        ("two receive contexts", |hints| hints.ep.rx_ctx_cnt = 2),
        ("reads before writes", |hints| {
            hints.ep.max_order_war_size = 1
        }),
        ("keys of endpoints", |hints| hints.ep.auth_key_size = 8),
        ("capabilities to send", |hints| hints.tx.caps = 1 << 3),
        ("flags to send", |hints| hints.tx.op_flags = FI_PEEK),
        ("an order of sends", |hints| hints.tx.msg_order = 1 << 3),
        ("an order of completions", |hints| {
            hints.tx.comp_order = 1 << 20
        }),
        ("long injected data", |hints| {
            hints.tx.inject_size = INJECT_BYTES + 1
        }),
        ("many sends", |hints| hints.tx.size = DEPTH_MAX + 1),
        ("many pieces to send", |hints| hints.tx.iov_limit = 5),
        ("many remote pieces", |hints| hints.tx.rma_iov_limit = 2),
        ("capabilities to receive", |hints| hints.rx.caps = 1 << 3),
        ("flags to receive", |hints| hints.rx.op_flags = FI_INJECT),
        ("an order of receives", |hints| hints.rx.msg_order = 1 << 3),
        ("many receives", |hints| hints.rx.size = DEPTH_MAX + 1),
        ("many pieces to receive", |hints| hints.rx.iov_limit = 5),
        ("another mode of memory", |hints| {
            hints.domain.mr_mode = 1 << 3
        }),
        ("keys of the program's own", |hints| {
            hints.domain.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
        }),
        ("automatic progress of data", |hints| {
            hints.domain.data_progress = FI_PROGRESS_AUTO
        }),
        ("automatic progress of control", |hints| {
            hints.domain.control_progress = FI_PROGRESS_AUTO;
        }),
        ("longer keys", |hints| hints.domain.mr_key_size = 9),
        ("longer data", |hints| hints.domain.cq_data_size = 9),
        ("data that takes no receive", |hints| {
            hints.info.mode = 0;
            hints.domain.cq_data_size = 8;
        }),
        ("capabilities of the domain", |hints| {
            hints.domain.caps = FI_RMA
        }),
        ("another domain", |hints| {
            hints.domain.name = c"mlx5_0".as_ptr().cast_mut()
        }),
        ("another network", |hints| {
            hints.fabric.name = c"10.9.8.0/24".as_ptr().cast_mut()
        }),
    ];
    for (name, change) in refused {
        let offer = offered(*change);
        assert_eq!(offer.err(), Some(-libc::ENODATA), "{name}");
    }
}

#[test]
fn what_the_provider_has_is_offered() {
    let accepted: &[Change] = &[
        ("everything", |_| {}),
        ("IPv4", |hints| hints.info.addr_format = FI_SOCKADDR_IN),
        ("any address", |hints| hints.info.addr_format = FI_SOCKADDR),
        ("an unspecified endpoint", |hints| {
            hints.ep.type_ = FI_EP_UNSPEC
        }),
        ("iWARP", |hints| hints.ep.protocol = FI_PROTO_IWARP),
        ("the longest messages", |hints| {
            hints.ep.max_msg_size = 1 << 30
        }),
        ("all orders", |hints| {
            (hints.tx.msg_order, hints.rx.msg_order) = (ORDERS, ORDERS)
        }),
        ("strict completions", |hints| {
            hints.tx.comp_order = FI_ORDER_STRICT
        }),
        ("the longest injected data", |hints| {
            hints.tx.inject_size = INJECT_BYTES
        }),
        ("the deepest queues", |hints| {
            (hints.tx.size, hints.rx.size) = (DEPTH_MAX, DEPTH_MAX)
        }),
        ("fences", |hints| hints.info.caps |= FI_FENCE),
        ("as many objects as there are", |hints| {
            (hints.domain.cq_cnt, hints.domain.cntr_cnt) = (1 << 12, 1 << 12);
            (hints.domain.ep_cnt, hints.domain.mr_cnt) = (1 << 13, 1 << 14);
        }),
        ("proofs of delivery", |hints| {
            hints.tx.op_flags = FI_DELIVERY_COMPLETE | FI_FENCE
        }),
        ("manual progress", |hints| {
            hints.domain.data_progress = FI_PROGRESS_MANUAL
        }),
        ("basic registration", |hints| {
            hints.domain.mr_mode = FI_MR_BASIC
        }),
        ("its own domain", |hints| {
            hints.domain.name = c"kernel".as_ptr().cast_mut()
        }),
        ("its own network", |hints| {
            hints.fabric.name = c"127.0.0.0/8".as_ptr().cast_mut()
        }),
        ("a shared context of many receives", |hints| {
            hints.ep.rx_ctx_cnt = FI_SHARED_CONTEXT;
            hints.rx.size = 16_384;
        }),
    ];
    for (name, change) in accepted {
        let offer = offered(*change);
        assert!(offer.is_ok(), "{name}: {:?}", offer.err());
    }
}

#[test]
fn an_offer_has_what_the_readme_says() {
    let offers = offered(|_| {}).expect("an offer");
    let info = offers.first();
    assert_eq!(
        info.caps & (FI_MSG | FI_RMA | FI_ATOMIC),
        FI_MSG | FI_RMA | FI_ATOMIC
    );
    assert_eq!(info.mode, FI_RX_CQ_DATA);
    assert_eq!((info.addr_format, info.src_addrlen), (FI_SOCKADDR_IN, 16));
    assert!(info.dest_addr.is_null() && info.handle.is_null() && info.nic.is_null());
    let (tx, rx, ep, domain) = (offers.tx(), offers.rx(), offers.ep(), offers.domain());
    assert_eq!(
        (tx.inject_size, tx.size, tx.iov_limit, tx.rma_iov_limit),
        (256, 256, 4, 1)
    );
    assert_eq!((tx.msg_order, tx.comp_order), (ORDERS, FI_ORDER_STRICT));
    assert_eq!((rx.size, rx.iov_limit, rx.total_buffered_recv), (256, 4, 0));
    assert_eq!((rx.mode, tx.mode, domain.mode), (FI_RX_CQ_DATA, 0, 0));
    assert_eq!(
        (ep.type_, ep.protocol, ep.max_msg_size),
        (FI_EP_MSG, FI_PROTO_IWARP, 1 << 30)
    );
    assert_eq!(
        (ep.tx_ctx_cnt, ep.rx_ctx_cnt, ep.max_order_war_size),
        (1, 1, 0)
    );
    assert_eq!((domain.control_progress, domain.data_progress), (2, 2));
    assert_eq!(
        (domain.threading, domain.mr_key_size, domain.cq_data_size),
        (FI_THREAD_SAFE, 8, 8)
    );
    assert_eq!(
        (
            domain.max_ep_srx_ctx,
            domain.max_ep_stx_ctx,
            domain.mr_iov_limit
        ),
        (256, 0, 1)
    );
    assert_eq!(offers.network(), "127.0.0.0/8");
}

#[test]
fn sizes_flags_and_threading_that_are_asked_for_come_back() {
    let offers = offered(|hints| {
        (hints.tx.size, hints.rx.size) = (17, 19);
        hints.tx.op_flags = FI_DELIVERY_COMPLETE;
        hints.rx.op_flags = FI_COMPLETION;
        hints.domain.threading = 3;
    });
    let offers = offers.expect("an offer");
    assert_eq!((offers.tx().size, offers.rx().size), (17, 19));
    assert_eq!(offers.tx().op_flags, FI_DELIVERY_COMPLETE);
    assert_eq!(offers.rx().op_flags, FI_COMPLETION);
    assert_eq!(offers.domain().threading, 3);
    let sends = offered(|hints| hints.tx.caps = FI_MSG | FI_SEND).expect("an offer");
    assert_eq!(sends.tx().caps, FI_MSG | FI_SEND);
    let fenced = offered(|hints| hints.info.caps |= FI_FENCE).expect("an offer");
    assert_ne!(fenced.tx().caps & FI_FENCE, 0);
    let shared = offered(|hints| hints.ep.rx_ctx_cnt = FI_SHARED_CONTEXT);
    assert_eq!(shared.expect("an offer").ep().rx_ctx_cnt, FI_SHARED_CONTEXT);
}

#[test]
fn a_capability_without_a_direction_means_every_direction() {
    let directions = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    let of = |caps| {
        let mut hints = Hints::all();
        hints.info.caps = caps;
        let offers = hints
            .offers(Some(c"127.0.0.1"), FI_SOURCE)
            .expect("an offer");
        let all = FI_SEND | FI_RECV | directions;
        (
            offers.first().caps & all,
            offers.tx().caps & all,
            offers.rx().caps & all,
        )
    };
    let (tx, rx) = (FI_READ | FI_WRITE, FI_REMOTE_READ | FI_REMOTE_WRITE);
    assert_eq!(of(FI_MSG), (FI_SEND | FI_RECV, FI_SEND, FI_RECV));
    assert_eq!(of(FI_MSG | FI_SEND), (FI_SEND, FI_SEND, 0));
    assert_eq!(of(FI_RMA), (directions, tx, rx));
    assert_eq!(of(FI_ATOMIC), (directions, tx, rx));
    assert_eq!(of(FI_RMA | FI_READ), (FI_READ, FI_READ, 0));
    let (all, sends, receives) = of(0);
    assert_eq!((all, sends), (FI_SEND | FI_RECV | directions, FI_SEND | tx));
    assert_eq!(receives, FI_RECV | rx);
}

#[test]
fn the_mode_of_registration_follows_the_program_s_version() {
    let ours = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    let of = |api, caps, mr_mode| {
        let mut hints = Hints::all();
        (hints.info.caps, hints.domain.mr_mode) = (caps, mr_mode);
        let offers = hints.offers_to(api, Some(c"127.0.0.1"), None, FI_SOURCE);
        offers.map(|offers| (offers.domain().mr_mode, offers.first().caps & FI_RMA != 0))
    };
    let old = version(1, 4);
    assert_eq!(of(API, FI_MSG | FI_RMA, ours), Ok((ours, true)));
    assert_eq!(
        of(API, FI_MSG | FI_RMA, FI_MR_BASIC),
        Ok((FI_MR_BASIC, true))
    );
    assert_eq!(
        of(API, FI_MSG | FI_RMA, 0),
        Err(-libc::ENODATA),
        "memory must be registered"
    );
    assert_eq!(
        of(API, FI_MSG, 0),
        Ok((0, false)),
        "messages need no registration"
    );
    assert_eq!(
        of(API, 0, 0),
        Ok((0, false)),
        "a program that knows of none is offered none"
    );
    assert_eq!(
        of(old, FI_MSG | FI_RMA, 0),
        Ok((FI_MR_BASIC, true)),
        "0 was the basic mode"
    );
    assert_eq!(of(old, FI_MSG | FI_RMA, ours), Ok((ours, true)));
}

#[test]
fn a_write_s_data_needs_a_program_that_gives_a_receive_for_it() {
    let of = |mode| {
        let mut hints = Hints::all();
        hints.info.mode = mode;
        let offers = hints
            .offers(Some(c"127.0.0.1"), FI_SOURCE)
            .expect("an offer");
        (offers.first().mode, offers.domain().cq_data_size)
    };
    assert_eq!(of(0), (0, 0));
    assert_eq!(of(FI_RX_CQ_DATA), (FI_RX_CQ_DATA, 8));
    // Modes that the provider does not need are not asked of the program.
    assert_eq!(of(FI_RX_CQ_DATA | 1 << 59), (FI_RX_CQ_DATA, 8));
}

#[test]
fn no_hints_are_an_offer_of_everything() {
    let offers = getinfo(API, None, None, 0, ptr::null()).expect("offers");
    assert_eq!(
        offers.first().caps & (FI_MSG | FI_RMA | FI_ATOMIC),
        FI_MSG | FI_RMA | FI_ATOMIC
    );
    assert!(
        (1..=16).contains(&offers.count()),
        "an offer for each address"
    );
    // The modes are those that the provider supports (fi_getinfo(3)).
    assert_eq!(offers.first().mode, FI_RX_CQ_DATA);
    assert_eq!(offers.domain().cq_data_size, 8);
    let bare: fi_info = zeroed();
    let offers = getinfo(API, None, None, 0, &bare).expect("hints without any part");
    assert_ne!(offers.first().caps, 0);
}

#[test]
fn objects_that_restrict_the_offers_are_the_provider_s_own() {
    let world = World::open();
    let mut hints = Hints::all();
    (hints.fabric.fabric, hints.domain.domain) = (world.fabric, world.domain);
    let offers = hints.offers(Some(c"127.0.0.1"), FI_SOURCE);
    let offers = offers.expect("an offer of its own objects");
    assert_eq!(offers.domain().domain, world.domain);
    // One of another provider has other operations.
    // SAFETY: an opened fabric, whose structure is plain.
    let mut other = unsafe { world.fabric.read() };
    other.ops = ptr::null();
    hints.fabric.fabric = &raw mut other;
    let refused = hints.offers(Some(c"127.0.0.1"), FI_SOURCE);
    assert_eq!(refused.err(), Some(-libc::ENODATA));
}
