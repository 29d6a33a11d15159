//! Contexts without engines: requests are served on this thread, and none of them parks.

use super::*;
use crate::engine::Work;
use crate::switch::OP_FAULT;

fn context() -> Arc<Context> {
    fault::install();
    let context = Context::new(0).unwrap();
    // A stack near the store's top, as a program has it.
    header(&context, |header, base| {
        header.store_stack = base + 0x3_f000;
        header.data_end = base + 0x1000;
    });
    context
}

fn header(context: &Context, change: impl FnOnce(&mut crate::switch::Header, u64)) {
    // SAFETY: the header of a live store that no engine has.
    change(
        unsafe { &mut *context.store.header() },
        context.store.base(),
    );
}

/// Serves a request; the stop where it ended the program.
fn serve(context: &Context, op: u64, args: [u64; 4]) -> Result<u64, Stop> {
    match context.serve(Request { op, args }) {
        Some(value) => Ok(value),
        None => match context.inner.lock().run {
            Run::Stopped(stop) => Err(stop),
            other => panic!("{op}: {other:?}"),
        },
    }
}

#[test]
fn mailboxes_and_signals_go_through_the_channels() {
    let context = context();
    context.push_in_mailbox(5);
    context.push_in_mailbox(6);
    assert_eq!(serve(&context, 3, [29, 0, 0, 0]), Ok(2));
    assert_eq!(serve(&context, 1, [29, 0, 0, 0]), Ok(5));
    assert_eq!(serve(&context, 2, [28, 7, 0, 0]), Ok(0));
    assert_eq!(context.read_mailbox(), Some(7));
    // The upper half of a register is no part of a word.
    assert_eq!(serve(&context, 2, [30, 0xffff_ffff_0000_0008, 0, 0]), Ok(0));
    assert_eq!(context.mail.take_interrupt(), Some(8));
    context.signal(0, 1);
    context.signal(0, 2);
    assert_eq!(serve(&context, 1, [3, 0, 0, 0]), Ok(2));
    context.write_register(Register::Signal(1), 3);
    assert_eq!(serve(&context, 1, [4, 0, 0, 0]), Ok(3));
}

#[test]
fn signals_are_joined_where_the_flags_say_so() {
    for (flags, wanted) in [(0, [2, 2]), (0x10, [3, 2]), (0x20, [2, 3]), (0x30, [3, 3])] {
        let context = Context::new(flags).unwrap();
        header(&context, |header, base| {
            header.store_stack = base + 0x3_f000
        });
        for index in [0, 1] {
            context.signal(index, 1);
            context.signal(index, 2);
        }
        let read = [3, 4].map(|channel| serve(&context, 1, [channel, 0, 0, 0]).unwrap());
        assert_eq!(read, wanted, "{flags:#x}");
    }
}

#[test]
fn a_full_mailbox_is_overwritten_by_dma_alone() {
    let context = context();
    for word in 0..4 {
        assert!(context.mail.push(word));
    }
    context.write_register(Register::InMailbox, 9);
    let words: Vec<_> = (0..4)
        .map(|_| serve(&context, 1, [29, 0, 0, 0]).unwrap())
        .collect();
    assert_eq!(words, [0, 1, 2, 9]);
}

#[test]
fn stops_are_exits_signals_and_errors() {
    for (op, a, b, wanted) in [
        (4, 0x2000, 0, Stop::Exit(0)),
        (4, 0x20ff, 0, Stop::Exit(255)),
        (4, 0x1_2345, 0x40_0010, Stop::Signal(0x2345, 0x10)),
        (4, 0x2100, 0x80, Stop::Signal(0x2100, 0x80)),
        (4, 0x2203, 0, Stop::Isolation(0x2203)),
        (5, 0x1ff, 0, Stop::Exit(0xff)),
        (6, 0, 0, Stop::Halt),
        (77, 0, 0, Stop::BadInstruction),
        (1, 6, 0, Stop::BadChannel),
        (2, 3, 0, Stop::BadChannel),
    ] {
        let context = context();
        assert_eq!(
            serve(&context, op, [a, b, 0, 0]),
            Err(wanted),
            "{op} {a:#x}"
        );
    }
    // What a loader of isolated programs reports is no stop.
    assert_eq!(serve(&context(), 4, [0x2206, 0, 0, 0]), Ok(0));
}

#[test]
fn a_stop_moves_the_token_and_wraps() {
    let context = context();
    context.inner.lock().token = (STORE_MASK - 3) as u32;
    assert!(serve(&context, 4, [0x10, 0, 0, 0]).is_err());
    assert_eq!(context.token(), 0);
    assert_eq!(context.wait_for_stop(), Stop::Signal(0x10, 0));
    // It is paused, and may go on.
    assert!(!context.is_running());
    context.go_on();
    assert!(context.is_running());
    context.end();
    assert!(!context.is_running());
}

#[test]
fn a_program_is_loaded_before_it_runs_and_not_while() {
    let context = context();
    let arguments = Arguments {
        words: [1, 2, 3],
        registers: None,
    };
    assert_eq!(context.begin(DEFAULT_ENTRY, &arguments), Err(libc::EINVAL));
    assert!(!context.may_read());
    context.inner.lock().program = Some(Program {
        entry: 0x80,
        end: 0x1000,
    });
    assert!(context.may_read());
    context.begin(DEFAULT_ENTRY, &arguments).unwrap();
    assert_eq!(context.begin(DEFAULT_ENTRY, &arguments), Err(libc::EBUSY));
    // The first frame: entry, registers, gate, arguments, start.
    let base = context.store.base();
    let mut at = 0;
    header(&context, |header, _| at = header.store_stack - base);
    assert_eq!(at, (STORE_BYTES - TOP_BYTES - 56) as u64);
    assert_eq!(u64::from(context.store.word(at)), base + 0x80);
    assert_eq!(
        [5, 4, 3].map(|word| context.store.word(at + 8 * word)),
        [1, 2, 3]
    );
    assert_eq!(context.store.word(at + 8), 0);
}

#[test]
fn registers_of_the_user_lie_at_the_stores_top() {
    let context = context();
    context.inner.lock().program = Some(Program {
        entry: 0x80,
        end: 0x1000,
    });
    let arguments = Arguments {
        words: [0; 3],
        registers: Some([9; 48]),
    };
    // An entry outside the store is one in it.
    context.begin(0x50_0084, &arguments).unwrap();
    let top = (STORE_BYTES - TOP_BYTES) as u64;
    assert_eq!(
        (context.store.word(top), context.store.word(top + 44)),
        (0x0909_0909, 0x0909_0909)
    );
    assert_eq!(context.store.word(top + 48), 0);
    let base = context.store.base();
    assert_eq!(u64::from(context.store.word(top - 56)), base + 0x84);
    assert_eq!(u64::from(context.store.word(top - 48)), base + top);
}

#[test]
fn a_stack_that_met_the_data_ends_the_program() {
    let context = context();
    header(&context, |header, base| header.store_stack = base + 0xff0);
    assert_eq!(context.overflow(), Some(16));
    assert_eq!(
        serve(&context, 1, [12, 0, 0, 0]),
        Err(Stop::Fatal(libc::ENOMEM))
    );
    // The heap counts, too, by the word that the program named.
    header(&context, |header, base| header.store_stack = base + 0x8000);
    assert_eq!(context.overflow(), None);
    context.store.set_word(0x200, 0x10_9000);
    assert_eq!(serve(&context, 8, [0x202, 0, 0, 0]), Ok(0));
    assert_eq!(context.overflow(), Some(0x1000));
    assert_eq!(context.usage(), [0x1000, 0x8000, 0x3_8000]);
    // A pointer out of the store is a stack as large as the store, at most.
    header(&context, |header, _| header.store_stack = 0);
    assert_eq!(context.usage()[2], STORE_BYTES as u64);
}

#[test]
fn faults_have_reasons() {
    let faulted = |signal: i32, pc: u64, address: u64, stack: u64| {
        let context = context();
        context.store.set_word(0x400, 0x9090_9090);
        header(&context, |header, base| {
            header.fault_signal = signal;
            header.fault_pc = base.wrapping_add(pc);
            header.fault_address = base.wrapping_add(address);
            header.store_stack = base + stack;
        });
        serve(&context, OP_FAULT, [0; 4]).expect_err("a fault")
    };
    let near = 0x3_f000;
    assert_eq!(faulted(libc::SIGILL, 0x400, 0, near), Stop::BadInstruction);
    // Data that was executed: zeroes.
    assert_eq!(faulted(libc::SIGSEGV, 0x800, 0, near), Stop::BadInstruction);
    assert_eq!(
        faulted(libc::SIGSEGV, 0x400, 1 << 30, near),
        Stop::Fatal(libc::EFAULT)
    );
    assert_eq!(
        faulted(libc::SIGFPE, 0x400, 0, near),
        Stop::Fatal(libc::EFAULT)
    );
    assert_eq!(
        faulted(libc::SIGBUS, 0x400, 0, near),
        Stop::Fatal(libc::EFAULT)
    );
    // Below the store, with the stack at its begin: that ran out.
    assert_eq!(
        faulted(libc::SIGSEGV, 0x400, u64::MAX, 16),
        Stop::Fatal(libc::ENOMEM)
    );
}

#[test]
fn proxy_commands_are_counted_by_their_tags() {
    let context = context();
    let memory = Box::new([5_u8; 256]);
    let at = crate::switch::address(memory.as_ptr()).next_multiple_of(16);
    let command = |tag, size| Command {
        lsa: 0x40,
        ea: at,
        size,
        tag,
        code: 0x40,
    };
    context.proxy(command(3, 16)).unwrap();
    context.proxy(command(7, 16)).unwrap();
    assert_eq!(context.store.word(0x40), 0x0505_0505);
    assert_eq!(context.proxy(command(3, 5)), Err(mfc::DMA_ALIGNMENT));
    assert_eq!(context.proxy_status(1 << 3), 1 << 3);
    assert_eq!(context.proxy_status(0), 1 << 7);
    assert_eq!(context.proxy_status(0), 0);
    let traffic = context.inner.lock().traffic();
    assert_eq!((traffic.commands, traffic.got_bytes), (2, 32));
}

/// A put to another context's register reaches it: of the host's commands, and of a list whose
/// later element fails.
#[test]
fn puts_to_registers_are_delivered() {
    let (own, target) = (context(), context());
    let signal = target.area(crate::area::Kind::Signal1).unwrap() + 12;
    let put = Command {
        lsa: 0x4c,
        ea: signal,
        size: 4,
        tag: 3,
        code: 0x20,
    };
    own.store.set_word(0x4c, 0x0102_0304);
    for (big, word) in [(false, 0x0102_0304), (true, 0x0403_0201)] {
        own.inner.lock().interpreted = big;
        own.proxy(put).unwrap();
        assert_eq!(serve(&target, 1, [3, 0, 0, 0]), Ok(word), "{big}");
    }
    let [low, list] = [crate::switch::low(signal), 0x100];
    for (at, word) in [(0, 4), (4, low), (8, 5), (12, low)] {
        own.store.set_word(u64::from(list) + at, word);
    }
    for (channel, value) in [(16, 0x40), (17, 0), (18, list), (19, 16), (20, 3)] {
        assert_eq!(serve(&own, 2, [channel, value.into(), 0, 0]), Ok(0));
    }
    assert_eq!(
        serve(&own, 2, [21, 0x24, 0, 0]),
        Err(Stop::Exception(mfc::DMA_ALIGNMENT))
    );
    assert_eq!(serve(&target, 1, [3, 0, 0, 0]), Ok(0x0102_0304));
}

#[test]
fn stops_are_kept_for_handlers_and_bounded() {
    let context = context();
    context.remember_stop(Stop::Halt);
    context.remember_stop(Stop::Exit(1));
    assert_eq!(context.inner.lock().stops, [Stop::Exit(1)]);
    context.inner.lock().sources.file(Source::Stopped).unwrap();
    for code in 0..=STOPS_MAX {
        context.remember_stop(Stop::Exit((code % 256) as u8));
    }
    let inner = context.inner.lock();
    assert_eq!(inner.stops.len(), STOPS_MAX);
    // The two oldest went.
    assert_eq!(inner.stops.front(), Some(&Stop::Exit(1)));
}

#[test]
fn an_area_shows_the_mailboxes() {
    let context = context();
    let control = context.area(Kind::Control).unwrap();
    let status = || crate::area::read(control + 20);
    assert_eq!(status(), Some(4 << 8));
    context.push_in_mailbox(1);
    assert_eq!(status(), Some(3 << 8));
    assert!(context.mail.put_out(1));
    context.mail_moved();
    assert_eq!(status(), Some(3 << 8 | 1));
    // A second question finds the same areas.
    assert_eq!(context.area(Kind::Control).unwrap(), control);
    assert_eq!(context.area(Kind::Signal2).unwrap(), control + 2 * 4096);
}

#[test]
fn a_polled_count_says_what_is_there_now() {
    let context = context();
    let request = Request {
        op: 3,
        args: [29, 0, 0, 0],
    };
    let poll = Ready::Poll(0);
    assert_eq!(context.put_step(0, &request, poll), poll);
    assert!(context.mail.watched() & watch::PARKED != 0);
    // Asked again with a word there, it is no poll any more.
    assert!(context.mail.push(1));
    assert_eq!(context.put_step(0, &request, poll), Ready::Event);
    assert_eq!(context.take_step().unwrap(), 1);
    assert_eq!(context.mail.watched() & watch::PARKED, 0);
}
