//! libspe2's functions as a host calls them: their answers, and the errno of each refusal.

mod spu;

use super::*;
use std::ptr::{null, null_mut};

/// A failed call's errno.
fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// A context that ends with the test.
struct Spe(*mut SpeContext);

impl Spe {
    fn new(flags: c_uint) -> Spe {
        // SAFETY: no gang.
        let spe = unsafe { spe_context_create(flags, null_mut()) };
        assert!(!spe.is_null(), "errno {}", errno());
        Spe(spe)
    }

    /// The context of the handle.
    fn context(&self) -> &crate::context::Context {
        // SAFETY: it lives until the drop below.
        unsafe { &(&*self.0).own }
    }
}

impl Drop for Spe {
    fn drop(&mut self) {
        // SAFETY: made above, and given up here.
        assert_eq!(unsafe { spe_context_destroy(self.0) }, 0);
    }
}

#[test]
fn null_contexts_are_no_contexts() {
    let none: *mut SpeContext = null_mut();
    let mut word = 0;
    // SAFETY: null is one of the values that each call takes.
    let failed = unsafe {
        [
            spe_context_destroy(none),
            spe_program_load(none, null_mut()),
            spe_ls_size_get(none),
            spe_out_mbox_read(none, &mut word, 1),
            spe_out_mbox_status(none),
            spe_in_mbox_write(none, &mut word, 1, 1),
            spe_in_mbox_status(none),
            spe_out_intr_mbox_read(none, &mut word, 1, 1),
            spe_out_intr_mbox_status(none),
            spe_signal_write(none, 1, 0),
            spe_mfcio_put(none, 0, null_mut(), 0, 0, 0, 0),
            spe_mfcio_get(none, 0, null_mut(), 0, 0, 0, 0),
            spe_mfcio_tag_status_read(none, 0, 1, &mut word),
            spe_mssync_start(none),
            spe_mssync_status(none),
            spe_context_run(none, &mut word, 0, null_mut(), null_mut(), null_mut()),
            spe_stop_info_read(none, null_mut()),
            spe_gang_context_destroy(null_mut()),
            spe_event_handler_destroy(null_mut()),
            spe_event_handler_register(null_mut(), null_mut()),
            spe_event_wait(null_mut(), null_mut(), 1, 0),
        ]
    };
    assert!(failed.iter().all(|answer| *answer == -1), "{failed:?}");
    assert_eq!(errno(), libc::ESRCH);
    // SAFETY: as above.
    unsafe {
        assert!(spe_ls_area_get(none).is_null() && errno() == libc::ESRCH);
        assert!(spe_ps_area_get(none, 0).is_null() && errno() == libc::ESRCH);
    }
}

#[test]
fn flags_that_are_none_make_no_context() {
    for (flags, number) in [
        (0x80, libc::ENODEV),
        (0x180, libc::ENODEV),
        (0x1, libc::EINVAL),
        (0x8000, libc::EINVAL),
        (1 << 31, libc::EINVAL),
    ] {
        // SAFETY: no gang.
        let spe = unsafe { spe_context_create(flags, null_mut()) };
        assert!(spe.is_null());
        assert_eq!(errno(), number, "{flags:#x}");
    }
    for flags in [0, 0x10, 0x30, 0x40, 0x100, 0x1000, 0x2000, 0x4000, 0x7170] {
        drop(Spe::new(flags));
    }
}

#[test]
fn affinities_are_refused_as_the_hardware_would() {
    // SAFETY: contexts and gangs are made and given up here, in order.
    unsafe {
        assert!(spe_gang_context_create(1).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let (gang, other) = (spe_gang_context_create(0), spe_gang_context_create(0));
        let affine = |flags, neighbour, gang| spe_context_create_affinity(flags, neighbour, gang);
        assert!(affine(0, null_mut(), null_mut()).is_null());
        assert_eq!(errno(), libc::ESRCH);
        let first = affine(0x2000, null_mut(), gang);
        assert!(!first.is_null());
        // One member alone may be near memory.
        assert!(affine(0x2000, null_mut(), gang).is_null());
        assert_eq!(errno(), libc::EEXIST);
        // A neighbour is of the same gang, and has one neighbour.
        assert!(affine(0, first, other).is_null());
        assert_eq!(errno(), libc::ESRCH);
        let second = affine(0, first, gang);
        assert!(!second.is_null());
        assert!(affine(0, first, gang).is_null());
        assert_eq!(errno(), libc::EEXIST);
        // As many as there are engines.
        let mut members = vec![first, second];
        loop {
            let next = affine(0, *members.last().unwrap(), gang);
            if next.is_null() {
                break;
            }
            members.push(next);
        }
        assert_eq!((errno(), members.len()), (libc::EEXIST, engine::count()));
        // One without an affinity needs no place.
        members.push(affine(0, null_mut(), gang));
        assert!(members.iter().all(|member| !member.is_null()));
        assert_eq!(spe_gang_context_destroy(gang), -1);
        assert_eq!(errno(), libc::EBUSY);
        // A place that was given up is free again.
        let last = members.remove(engine::count() - 1);
        assert_eq!(spe_context_destroy(last), 0);
        (*gang).ran.store(true, Ordering::Relaxed);
        assert!(affine(0, null_mut(), gang).is_null());
        assert_eq!(errno(), libc::EBUSY);
        for member in members {
            assert_eq!(spe_context_destroy(member), 0);
        }
        assert_eq!(spe_gang_context_destroy(gang), 0);
        assert_eq!(spe_gang_context_destroy(other), 0);
    }
}

#[test]
fn mailboxes_move_as_many_words_as_there_are() {
    let spe = Spe::new(0);
    let mut words = [1, 2, 3, 4, 5, 6];
    // SAFETY: the context lives, and there are as many words as are said.
    unsafe {
        let write = |words: &mut [c_uint], behaviour| {
            spe_in_mbox_write(spe.0, words.as_mut_ptr(), words.len() as c_int, behaviour)
        };
        assert_eq!(spe_in_mbox_status(spe.0), 4);
        assert_eq!(write(&mut words[..3], 1), 3);
        assert_eq!(spe_in_mbox_status(spe.0), 1);
        // As many as go in without a wait: one; then any: one too, as soon as there is room.
        assert_eq!(write(&mut words, 3), 1);
        assert_eq!(write(&mut words, 3), 0);
        assert_eq!(spe.context().mail.pop(), Some(1));
        assert_eq!(write(&mut words, 2), 1);
        // Outbound: what is there, in order.
        assert_eq!(
            (spe_out_mbox_status(spe.0), spe_out_intr_mbox_status(spe.0)),
            (0, 0)
        );
        assert_eq!(spe_out_mbox_read(spe.0, words.as_mut_ptr(), 6), 0);
        assert!(spe.context().mail.put_out(77) && spe.context().mail.put_interrupt(78));
        assert_eq!(
            (spe_out_mbox_status(spe.0), spe_out_intr_mbox_status(spe.0)),
            (1, 1)
        );
        assert_eq!(spe_out_mbox_read(spe.0, words.as_mut_ptr(), 6), 1);
        assert_eq!(
            spe_out_intr_mbox_read(spe.0, words[1..].as_mut_ptr(), 5, 2),
            1
        );
        assert_eq!(words[..3], [77, 78, 3]);
        assert_eq!(spe_out_intr_mbox_read(spe.0, words.as_mut_ptr(), 1, 3), 0);
    }
}

#[test]
fn buffers_and_behaviours_that_are_none_are_refused() {
    let spe = Spe::new(0);
    let mut word = 1;
    let place: *mut c_uint = &mut word;
    // SAFETY: the context lives; null is looked for.
    let answers = unsafe {
        [
            spe_in_mbox_write(spe.0, null_mut(), 1, 1),
            spe_in_mbox_write(spe.0, place, 0, 1),
            spe_in_mbox_write(spe.0, place, -1, 1),
            spe_in_mbox_write(spe.0, place, 1, 0),
            spe_in_mbox_write(spe.0, place, 1, 4),
            spe_out_mbox_read(spe.0, null_mut(), 1),
            spe_out_mbox_read(spe.0, place, 0),
            spe_out_intr_mbox_read(spe.0, place, 1, 4),
            spe_out_intr_mbox_read(spe.0, null_mut(), 1, 3),
            spe_signal_write(spe.0, 0, 1),
            spe_signal_write(spe.0, 3, 1),
        ]
    };
    assert!(answers.iter().all(|answer| *answer == -1), "{answers:?}");
    assert_eq!(errno(), libc::EINVAL);
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            (spe_signal_write(spe.0, 1, 7), spe_signal_write(spe.0, 2, 8)),
            (0, 0)
        );
    }
}

#[test]
fn proxy_commands_have_tags_of_the_hosts() {
    let spe = Spe::new(0);
    let mut data = Box::new([3_u8; 64]);
    let at = data
        .as_mut_ptr()
        .wrapping_add(data.as_ptr().align_offset(16))
        .cast::<c_void>();
    let mut done = 0;
    // SAFETY: the context lives, and there are 16 bytes at `at`.
    unsafe {
        assert_eq!(spe_mfcio_get(spe.0, 0x100, at, 16, 5, 0, 0), 0);
        assert_eq!(spe.context().store.word(0x100), 0x0303_0303);
        spe.context().store.set_word(0x100, 9);
        assert_eq!(spe_mfcio_putb(spe.0, 0x100, at, 4, 6, 1, 1), 0);
        assert_eq!(at.cast::<u32>().read(), 9);
        assert_eq!(spe_mfcio_tag_status_read(spe.0, 1 << 5, 1, &mut done), 0);
        assert_eq!(done, 1 << 5);
        assert_eq!(spe_mfcio_tag_status_read(spe.0, 0, 3, &mut done), 0);
        assert_eq!(done, 1 << 6);
        let refused = [
            spe_mfcio_get(spe.0, 0, at, 16, 16, 0, 0),
            spe_mfcio_getf(spe.0, 0, at, 16, 0, 256, 0),
            spe_mfcio_putf(spe.0, 0, at, 16, 0, 0, 256),
            spe_mfcio_tag_status_read(spe.0, 0, 0, &mut done),
            spe_mfcio_tag_status_read(spe.0, 0, 4, &mut done),
            spe_mfcio_tag_status_read(spe.0, 0, 1, null_mut()),
        ];
        assert!(refused.iter().all(|answer| *answer == -1), "{refused:?}");
        assert_eq!(errno(), libc::EINVAL);
        // What a transfer refuses, and memory that is not there.
        assert_eq!(spe_mfcio_getb(spe.0, 1, at, 16, 0, 0, 0), -1);
        assert_eq!(errno(), libc::EIO);
        assert_eq!(spe_mfcio_put(spe.0, 0, null_mut(), 16, 0, 0, 0), -1);
        assert_eq!(errno(), libc::EIO);
        let wild = 0x10 as *mut c_uint;
        assert_eq!(spe_mfcio_tag_status_read(spe.0, 0, 1, wild), -1);
        assert_eq!(errno(), libc::EFAULT);
        assert_eq!((spe_mssync_start(spe.0), spe_mssync_status(spe.0)), (0, 0));
    }
}

#[test]
fn programs_come_from_files_that_may_be_executed() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| {
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a text that lives over the call.
        unsafe { spe_image_open(name.as_ptr()) }
    };
    // SAFETY: null is looked for.
    unsafe {
        assert!(spe_image_open(null()).is_null() && errno() == libc::EFAULT);
        assert_eq!((spe_image_close(null_mut()), errno()), (-1, libc::EINVAL));
    }
    assert!(open(&folder.path().join("none")).is_null());
    assert_eq!(errno(), libc::ENOENT);
    assert!(open(folder.path()).is_null());
    assert_eq!(errno(), libc::EACCES);
    let file = folder.path().join("text");
    std::fs::write(&file, "text").unwrap();
    assert!(open(&file).is_null());
    assert_eq!(errno(), libc::EACCES);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(open(&file).is_null());
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn what_is_no_program_is_not_loaded_and_not_run() {
    let spe = Spe::new(0);
    let mut entry = u32::MAX;
    let mut wide = [0_u8; 64];
    wide[..5].copy_from_slice(b"\x7fELF\x02");
    let mut handle = ProgramHandle {
        handle_size: HANDLE_BYTES,
        elf_image: null_mut(),
        toe_shadow: null_mut(),
    };
    // SAFETY: the context lives; handles are ours, with at least a header behind them.
    unsafe {
        assert_eq!(
            (spe_program_load(spe.0, null_mut()), errno()),
            (-1, libc::EINVAL)
        );
        assert_eq!(
            (spe_program_load(spe.0, &mut handle), errno()),
            (-1, libc::EINVAL)
        );
        handle.elf_image = wide.as_mut_ptr().cast();
        assert_eq!(
            (spe_program_load(spe.0, &mut handle), errno()),
            (-1, libc::EINVAL)
        );
        let run = |entry: *mut c_uint, flags| {
            spe_context_run(spe.0, entry, flags, null_mut(), null_mut(), null_mut())
        };
        assert_eq!((run(&mut entry, 0), errno()), (-1, libc::EINVAL));
        assert_eq!((run(null_mut(), 0), errno()), (-1, libc::EINVAL));
        // Registers of the user, and none.
        assert_eq!((run(&mut entry, 1), errno()), (-1, libc::EINVAL));
    }
}

#[test]
fn the_store_and_its_areas_are_addressed() {
    let spe = Spe::new(0x40);
    // SAFETY: the context lives.
    unsafe {
        assert_eq!(spe_ls_size_get(spe.0), 256 * 1024);
        let store = spe_ls_area_get(spe.0).cast::<u32>();
        store.write(5);
        assert_eq!(spe.context().store.word(0), 5);
        let areas: Vec<_> = (0..5).map(|area| spe_ps_area_get(spe.0, area)).collect();
        assert!(areas.iter().all(|area| !area.is_null()));
        assert!(spe_ps_area_get(spe.0, 5).is_null() && errno() == libc::EINVAL);
        // By the address of a register, as `cbe_mfc.h` has it.
        let signal = areas[3].cast::<u8>().add(12).cast::<c_void>();
        assert_eq!(sidecore_spe_register_write(signal, 9), 1);
        assert_eq!(sidecore_spe_register_write(areas[0], 9), 0);
        assert_eq!(sidecore_spe_register_write(null(), 9), 0);
        let status = areas[2].cast::<u8>().add(20).cast::<c_void>();
        assert_eq!(sidecore_spe_register_read(status), 4 << 8);
        assert_eq!(sidecore_spe_register_read(null()), 0);
        let other = Spe::new(0);
        assert!(spe_ps_area_get(other.0, 0).is_null() && errno() == libc::EACCES);
    }
}

#[test]
fn processors_are_counted() {
    let engines = engine::count() as c_int;
    assert_eq!(spe_cpu_info_get(1, -1), 1);
    assert_eq!(
        (spe_cpu_info_get(2, -1), spe_cpu_info_get(3, 0)),
        (engines, engines)
    );
    assert_eq!(spe_cpu_info_get(4, 0), 2);
    for (asked, node) in [(0, -1), (1, 0), (2, 1), (3, -2), (5, -1)] {
        assert_eq!((spe_cpu_info_get(asked, node), errno()), (-1, libc::EINVAL));
    }
}

#[test]
fn handlers_watch_contexts_that_have_events() {
    let (with, without) = (Spe::new(0x1000), Spe::new(0));
    let mut room = [EventUnit::of(0, null_mut()); 4];
    let handler = spe_event_handler_create();
    // SAFETY: handler and contexts live; units are our own.
    unsafe {
        let register = |unit: &mut EventUnit| spe_event_handler_register(handler, unit);
        assert_eq!(
            (register(&mut EventUnit::of(2, without.0)), errno()),
            (-1, libc::ENOTSUP)
        );
        assert_eq!(
            (register(&mut EventUnit::of(16, with.0)), errno()),
            (-1, libc::ENOTSUP)
        );
        assert_eq!(
            (register(&mut EventUnit::of(2, null_mut())), errno()),
            (-1, libc::EINVAL)
        );
        let refused = spe_event_handler_register(handler, null_mut());
        assert_eq!((refused, errno()), (-1, libc::EINVAL));
        let mut both = EventUnit::of(0b1010, with.0);
        both.data = 99;
        assert_eq!(register(&mut both), 0);
        assert_eq!((register(&mut both), errno()), (-1, libc::EEXIST));
        // There is room inbound, so that event is there at once.
        assert_eq!(spe_event_wait(handler, room.as_mut_ptr(), 4, -1), 1);
        assert_eq!((room[0].events, room[0].spe, room[0].data), (2, with.0, 99));
        (*with.0).own.remember_stop(crate::channel::Stop::Halt);
        assert_eq!(spe_event_wait(handler, room.as_mut_ptr(), 4, 0), 2);
        for most in [0, -1] {
            let waited = spe_event_wait(handler, room.as_mut_ptr(), most, 0);
            assert_eq!((waited, errno()), (-1, libc::EINVAL));
        }
        assert_eq!(spe_event_handler_deregister(handler, &mut both), 0);
        assert_eq!(spe_event_wait(handler, room.as_mut_ptr(), 4, 0), 0);
        let again = spe_event_handler_deregister(handler, &mut both);
        assert_eq!((again, errno()), (-1, libc::ENOENT));
        assert_eq!(spe_event_handler_destroy(handler), 0);
    }
}

#[test]
fn stops_are_read_where_events_are() {
    use crate::channel::Stop;
    let (with, without) = (Spe::new(0x1000), Spe::new(0));
    let mut info = StopInfo::of(Stop::Halt);
    // SAFETY: the contexts live.
    unsafe {
        assert_eq!(
            (spe_stop_info_read(without.0, &mut info), errno()),
            (-1, libc::ENOTSUP)
        );
        assert_eq!(
            (spe_stop_info_read(with.0, &mut info), errno()),
            (-1, libc::EAGAIN)
        );
        (*with.0).own.remember_stop(Stop::Exit(3));
        assert_eq!(
            (spe_stop_info_read(with.0, null_mut()), errno()),
            (-1, libc::EINVAL)
        );
        assert_eq!(spe_stop_info_read(with.0, &mut info), 0);
    }
    assert_eq!(info.fields(), (1, 3, 0x2003_0002));
}

#[test]
fn stop_information_is_libspe2s() {
    use crate::channel::Stop;
    for (stop, fields) in [
        (Stop::Exit(255), (1, 255, 0x20ff_0002)),
        (Stop::Signal(0x1234, 5), (2, 0x1234, 0x1234_0002)),
        (Stop::Halt, (3, 4, 4)),
        (Stop::BadInstruction, (3, 0x20, 0x20)),
        (Stop::BadChannel, (3, 0x40, 0x40)),
        (Stop::Exception(8), (4, 8, -1)),
        (Stop::Fatal(libc::EFAULT), (5, 14, -1)),
        (Stop::Callback(-1), (6, 0xffff_ffff, 2)),
        (Stop::Isolation(0x2207), (7, 7, 0x2207_0002)),
    ] {
        assert_eq!(StopInfo::of(stop).fields(), fields, "{stop:?}");
    }
}

unsafe extern "C" fn callback(_: *mut c_void, _: c_uint) -> c_int {
    0
}

#[test]
fn callbacks_of_our_own_numbers_are_replaced_only() {
    let handler = callback as *mut c_void;
    // SAFETY: handlers have the form that is asked for.
    unsafe {
        let register = |number, mode| spe_callback_handler_register(handler, number, mode);
        for (number, mode, wanted) in [
            (256, 1, libc::EINVAL),
            (0, 1, libc::EACCES),
            (200, 2, libc::ESRCH),
            (200, 3, libc::EINVAL),
        ] {
            assert_eq!(
                (register(number, mode), errno()),
                (-1, wanted),
                "{number} {mode}"
            );
        }
        let null = spe_callback_handler_register(null_mut(), 200, 1);
        assert_eq!((null, errno()), (-1, libc::EINVAL));
        assert_eq!(register(200, 1), 0);
        assert_eq!((register(200, 1), errno()), (-1, libc::EACCES));
        assert_eq!(register(200, 2), 0);
    }
    assert_eq!(spe_callback_handler_query(200), handler);
    assert_eq!(spe_callback_handler_deregister(200), 0);
    for (number, wanted) in [(200, libc::ESRCH), (3, libc::EACCES), (256, libc::EINVAL)] {
        let answer = spe_callback_handler_deregister(number);
        assert_eq!((answer, errno()), (-1, wanted), "{number}");
    }
    assert!(spe_callback_handler_query(200).is_null() && errno() == libc::ESRCH);
    assert!(spe_callback_handler_query(256).is_null() && errno() == libc::EINVAL);
    assert!(!spe_callback_handler_query(1).is_null() && errno() == 0);
}

#[test]
fn a_panic_is_an_error_of_the_call() {
    let answer = call(-7, || -> Result<c_int, c_int> { panic!("a bug") });
    assert_eq!((answer, errno()), (-7, libc::EFAULT));
}
