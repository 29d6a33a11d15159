//! The life of objects: opening, binding, options, names, closing; and calls that are not offered.

use super::*;
use crate::place::CM_BYTES;

#[test]
fn the_entry_point_names_the_provider() {
    let provider = provider();
    // SAFETY: its name is a string.
    let name = unsafe { CStr::from_ptr(provider.name) };
    assert_eq!(name, c"sidecore");
    assert_eq!(provider.fi_version, version(1, 17));
    // SAFETY: it does nothing.
    unsafe { provider.cleanup.expect("cleanup")() };
}

#[test]
fn calls_that_are_not_offered_say_so() {
    let world = World::open();
    let (fabric, domain) = (world.fabric, world.domain);
    // SAFETY: placeholders take no arguments.
    unsafe {
        let (fabric, domain) = (&*(*fabric).ops, &*(*domain).ops);
        for missing in [
            fabric.wait_open,
            domain.av_open,
            domain.scalable_ep,
            domain.poll_open,
        ] {
            assert_eq!(missing.expect("a placeholder")(), -libc::ENOSYS);
        }
        assert!(domain.query_collective.is_none() && domain.endpoint2.is_none());
    }
    assert_eq!(bind(fabric, world.eq, 0), -libc::ENOSYS);
    assert_eq!(
        control(domain, FI_ENABLE, null_mut::<c_void>()),
        -libc::ENOSYS
    );
    let head: *mut fid = domain.cast();
    let opened = op!(
        head,
        ops.ops_open(c"none".as_ptr(), 0, &mut null_mut(), null_mut())
    );
    assert_eq!(opened, -libc::ENOSYS);
    let ep = world.endpoint(world.offers.0, null_mut());
    // SAFETY: placeholders take no arguments.
    unsafe {
        let (ops, cm) = (&*(*ep).ops, &*(*ep).cm);
        assert_eq!(ops.tx_ctx.expect("a placeholder")(), -libc::ENOSYS);
        assert_eq!(
            ops.rx_size_left.expect("a placeholder")(),
            failed(libc::ENOSYS)
        );
        assert_eq!(cm.join.expect("a placeholder")(), -libc::ENOSYS);
        assert!((*ep).tagged.is_null() && (*ep).collective.is_null());
    }
    assert_eq!(close(ep), 0);
}

#[test]
fn an_endpoint_needs_a_queue_or_a_counter() {
    let world = World::open();
    let ep = world.endpoint(world.offers.0, null_mut());
    let enable = || control(ep, FI_ENABLE, null_mut::<c_void>());
    assert_eq!(enable(), -FI_ENOCQ);
    assert_eq!(bind(ep, world.domain, 0), -libc::EINVAL);
    let cntr = world.cntr();
    assert_eq!(bind(ep, cntr, FI_READ), 0);
    assert_eq!(enable(), 0);
    assert_eq!(control(ep, 99, null_mut::<c_void>()), -libc::ENOSYS);
    let other = world.endpoint(world.offers.0, null_mut());
    let cq = world.cq(0);
    assert_eq!(bind(other, cq, FI_SEND), 0);
    assert_eq!(control(other, FI_ENABLE, null_mut::<c_void>()), 0);
    for object in [ep.cast::<fid>(), other.cast(), cq.cast(), cntr.cast()] {
        assert_eq!(close(object), 0);
    }
}

#[test]
fn flags_of_operations_are_kept_for_each_direction() {
    let world = World::of(Hints::new(|hints| {
        *hints = Hints::all();
        hints.tx.op_flags = FI_DELIVERY_COMPLETE;
    }));
    let ep = world.endpoint(world.offers.0, null_mut());
    let get = |mut flags: u64| {
        let got = control(ep, FI_GETOPSFLAG, &mut flags);
        (got, flags)
    };
    let set = |mut flags: u64| control(ep, FI_SETOPSFLAG, &mut flags);
    assert_eq!(get(FI_SEND), (0, FI_DELIVERY_COMPLETE), "those of the info");
    assert_eq!(get(FI_RECV), (0, 0));
    assert_eq!(set(FI_SEND | FI_COMPLETION), 0);
    assert_eq!(set(FI_RECV | FI_COMPLETION | FI_INJECT), 0);
    assert_eq!(get(FI_SEND), (0, FI_COMPLETION), "without the direction");
    assert_eq!(get(FI_RECV), (0, FI_COMPLETION | FI_INJECT));
    for wrong in [0, FI_SEND | FI_RECV] {
        assert_eq!(set(wrong), -libc::EINVAL);
        assert_eq!(get(wrong).0, -libc::EINVAL);
    }
    assert_eq!(close(ep), 0);
}

#[test]
fn the_only_option_is_the_length_of_private_data() {
    let world = World::open();
    let ep = world.endpoint(world.offers.0, null_mut());
    let get = |level, name, mut length: usize| {
        let mut value = 0_usize;
        let target = (&raw mut value).cast();
        let got = op!(head ep, ops.getopt(level, name, target, &mut length));
        (got, value, length)
    };
    assert_eq!(get(0, FI_OPT_CM_DATA_SIZE, 8), (0, CM_BYTES, 8));
    assert_eq!(get(0, FI_OPT_CM_DATA_SIZE, 100), (0, CM_BYTES, 8));
    assert_eq!(
        get(0, FI_OPT_CM_DATA_SIZE, 7),
        (-libc::EINVAL, 0, 7),
        "too short a place"
    );
    assert_eq!(get(0, 0, 8).0, -libc::ENOPROTOOPT);
    assert_eq!(get(1, FI_OPT_CM_DATA_SIZE, 8).0, -libc::ENOPROTOOPT);
    let value = 9_usize;
    let set = op!(head ep, ops.setopt(0, 1, (&raw const value).cast(), 8));
    assert_eq!(set, -libc::ENOPROTOOPT);
    assert_eq!(close(ep), 0);
}

#[test]
fn names_are_given_and_read_with_their_length() {
    let world = World::open();
    let (pep, address) = world.listener();
    assert_eq!(address.len(), 16);
    assert_ne!(address[2..4], [0, 0], "a port was chosen");
    let mut short = [0xee_u8; 16];
    let mut length = 15;
    let named = op!(head pep, cm.getname(short.as_mut_ptr().cast(), &mut length));
    assert_eq!((named, length, short), (-FI_ETOOSMALL, 16, [0xee; 16]));
    // A listener stays where it is; one that does not listen yet can be moved.
    let mut moved = address.clone();
    let renamed = op!(head pep, cm.setname(moved.as_mut_ptr().cast(), 16));
    assert_eq!(renamed, -libc::EINVAL);
    let mut other = null_mut();
    assert_eq!(
        op!(
            world.fabric,
            ops.passive_ep(world.offers.0, &mut other, null_mut())
        ),
        0
    );
    let renamed = op!(head other, cm.setname(moved.as_mut_ptr().cast(), 16));
    assert_eq!(renamed, 0);
    let renamed = op!(head other, cm.setname(moved.as_mut_ptr().cast(), 15));
    assert_eq!(renamed, -libc::EINVAL);
    let mut length = 16;
    let named = op!(head other, cm.getname(short.as_mut_ptr().cast(), &mut length));
    assert_eq!((named, &short[..]), (0, &address[..]));
    assert_eq!(op!(other, cm.listen()), -libc::EADDRINUSE);
    let mut backlog: c_int = -5;
    assert_eq!(
        control(other, FI_BACKLOG, &mut backlog),
        0,
        "a wrong number is taken for 1"
    );
    assert_eq!(
        control(other, FI_ENABLE, null_mut::<c_void>()),
        -libc::ENOSYS
    );
    assert_eq!(
        bind(other, world.domain, 0),
        -libc::EINVAL,
        "events go to an event queue"
    );
    for object in [pep, other] {
        assert_eq!(close(object), 0);
    }
}

#[test]
fn an_active_endpoint_has_its_info_s_name_until_it_is_connected() {
    let two = Two::open();
    let ep = two.world.endpoint(two.world.offers.0, null_mut());
    let name = |ep: *mut fid_ep| {
        let (mut raw, mut length) = ([0_u8; 64], 64);
        let named = op!(head ep, cm.getname(raw.as_mut_ptr().cast(), &mut length));
        assert_eq!(named, 0);
        raw[..length].to_vec()
    };
    let peer = |ep: *mut fid_ep| {
        let (mut raw, mut length) = ([0_u8; 64], 64);
        let named = op!(ep, cm.getpeer(raw.as_mut_ptr().cast(), &mut length));
        (named, raw[..length].to_vec())
    };
    assert_eq!(name(ep)[..8], [2, 0, 0, 0, 127, 0, 0, 1]);
    assert_eq!(peer(ep).0, -libc::ENOTCONN);
    let mut raw = [0_u8; 16];
    let renamed = op!(head ep, cm.setname(raw.as_mut_ptr().cast(), 16));
    assert_eq!(renamed, -libc::EINVAL, "no address");
    assert_eq!(peer(two.client), (0, name(two.server)));
    assert_eq!(peer(two.server), (0, name(two.client)));
    assert_eq!(close(ep), 0);
}

#[test]
fn queues_and_counters_of_another_kind_are_not_offered() {
    let world = World::open();
    let mut cq = null_mut();
    for (format, wait_obj) in [(5, 0), (-1, 0), (0, 2), (0, 4)] {
        let mut attr = fi_cq_attr {
            format,
            wait_obj,
            ..zeroed()
        };
        let opened = op!(world.domain, ops.cq_open(&mut attr, &mut cq, null_mut()));
        assert_eq!(opened, -libc::ENOSYS, "{format} {wait_obj}");
    }
    let mut cntr = null_mut();
    for (events, wait_obj) in [(1, 0), (0, 2)] {
        let mut attr = fi_cntr_attr {
            events,
            wait_obj,
            ..zeroed()
        };
        let opened = op!(
            world.domain,
            ops.cntr_open(&mut attr, &mut cntr, null_mut())
        );
        assert_eq!(opened, -libc::ENOSYS, "{events} {wait_obj}");
    }
    // Without attributes: the defaults.
    assert_eq!(
        op!(world.domain, ops.cq_open(null_mut(), &mut cq, null_mut())),
        0
    );
    assert_eq!(
        op!(
            world.domain,
            ops.cntr_open(null_mut(), &mut cntr, null_mut())
        ),
        0
    );
    assert_eq!([close(cq), close(cntr)], [0; 2]);
}

#[test]
fn objects_keep_their_context_and_class() {
    let world = World::open();
    let (mut cq, mut pep) = (null_mut(), null_mut());
    assert_eq!(
        op!(world.domain, ops.cq_open(null_mut(), &mut cq, context(7))),
        0
    );
    assert_eq!(
        op!(
            world.fabric,
            ops.passive_ep(world.offers.0, &mut pep, context(8))
        ),
        0
    );
    let ep = world.endpoint(world.offers.0, context(9));
    // SAFETY: objects that are not closed.
    unsafe {
        assert_eq!(
            ((*cq).fid.fclass, (*cq).fid.context),
            (FI_CLASS_CQ, context(7))
        );
        assert_eq!(
            ((*pep).fid.fclass, (*pep).fid.context),
            (FI_CLASS_PEP, context(8))
        );
        assert_eq!(
            ((*ep).fid.fclass, (*ep).fid.context),
            (FI_CLASS_EP, context(9))
        );
        assert_eq!((*world.eq).fid.fclass, FI_CLASS_EQ);
        assert_eq!((*world.domain).fid.fclass, FI_CLASS_DOMAIN);
    }
    assert_eq!([close(ep), close(pep), close(cq)], [0; 3]);
}
