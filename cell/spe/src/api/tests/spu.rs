//! Programs of the SPU's own instructions, as contexts run them.

use super::*;
use crate::channel::Stop;

/// An executable of the SPU with one part at 0, which is the entry.
fn executable(part: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 84];
    file[..7].copy_from_slice(b"\x7fELF\x01\x02\x01");
    let bytes = u32::try_from(part.len()).unwrap();
    for (at, half) in [(16, 2_u16), (18, 23), (42, 32), (44, 1)] {
        file[at..at + 2].copy_from_slice(&half.to_be_bytes());
    }
    for (at, word) in [(28, 52), (52, 1), (56, 84), (68, bytes), (72, bytes)] {
        file[at..at + 4].copy_from_slice(&u32::to_be_bytes(word));
    }
    file.extend_from_slice(part);
    file
}

/// A part with instructions at 0 and words elsewhere.
fn part(program: &[u32], data: &[(usize, u32)]) -> Vec<u8> {
    let mut part = vec![0; 0x6000];
    let words = (0..).step_by(4).zip(program.iter().copied());
    for (at, word) in words.chain(data.iter().copied()) {
        part[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    part
}

fn spus(name: &str, rt: u8, ra: u8, rb: u8, immediate: i32) -> u32 {
    let row = sidecore_spu::named(name).expect("an instruction");
    row.encode(sidecore_spu::Fields {
        rt,
        ra,
        rb,
        immediate,
        ..Default::default()
    })
}

/// A command of the MFC's and the wait for it; the effective address in registers 8 and 9.
fn transfer(place: i32, bytes: i32, code: i32) -> Vec<u32> {
    let write = |channel: u8, number: i32| {
        [
            spus("ila", 20, 0, 0, number),
            spus("wrch", 20, channel, 0, 0),
        ]
    };
    let mut all = write(16, place).to_vec();
    all.extend([spus("wrch", 8, 17, 0, 0), spus("wrch", 9, 18, 0, 0)]);
    for (channel, number) in [(19, bytes), (20, 1), (21, code), (22, 2), (23, 2)] {
        all.extend(write(channel, number));
    }
    all.push(spus("rdch", 21, 24, 0, 0));
    all
}

#[test]
fn programs_of_the_spu_itself_run_with_the_same_channels() {
    let spe = Spe::new(0);
    let base = spe.context().store.base();
    let mut program = vec![spus("rdch", 10, 29, 0, 0)];
    // argp has 64 bits: register 4's first two words.
    program.extend([spus("ori", 8, 4, 0, 0), spus("rotqbyi", 9, 4, 0, 4)]);
    program.extend(transfer(0x1000, 16, 0x40));
    program.push(spus("lqa", 14, 0, 0, 0x400));
    program.push(spus("a", 14, 14, 10, 0));
    program.push(spus("stqa", 14, 0, 0, 0x400));
    program.extend(transfer(0x1000, 16, 0x20));
    // A list, whose words have the program's order: from the store by its own address.
    program.extend([spus("il", 8, 0, 0, 0), spus("ila", 9, 0, 0, 0x4000)]);
    program.extend(transfer(0x5000, 8, 0x44));
    program.push(spus("lqa", 15, 0, 0, 0x1400));
    program.push(spus("wrch", 15, 28, 0, 0));
    // fopen of a file that is not there: the result, and errno in the first slot's last word.
    program.extend([0x2100, 10 << 24 | 0x2000]);
    program.extend([spus("lqa", 16, 0, 0, 0x800), spus("rotqbyi", 17, 16, 0, 12)]);
    program.push(spus("wrch", 17, 30, 0, 0));
    program.extend([0x1234, 0x2007]);
    let list = u32::try_from(base).unwrap() + 0x1000;
    let data = [
        (0x2000, 0x3000),
        (0x2010, 0x3010),
        (0x3000, u32::from_be_bytes(*b"/?/\0")),
        (0x3010, u32::from_be_bytes(*b"r\0\0\0")),
        (0x4000, 16),
        (0x4004, list),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), executable(&part(&program, &data))).unwrap();
    std::fs::set_permissions(
        file.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let name = std::ffi::CString::new(file.path().as_os_str().as_bytes()).unwrap();
    #[repr(align(16))]
    struct Line([u32; 4]);
    let mut line = Line([1000, 2, 3, 4].map(u32::to_be));
    // SAFETY: a context, an image and a line that live until the end.
    unsafe {
        let image = spe_image_open(name.as_ptr());
        assert!(!image.is_null());
        assert_eq!(spe_program_load(spe.0, image), 0);
        let (mut word, mut entry) = (234, u32::MAX);
        assert_eq!(spe_in_mbox_write(spe.0, &mut word, 1, 1), 1);
        let argument = (&raw mut line).cast();
        let mut run = || {
            let mut stop = std::mem::zeroed();
            let answer = spe_context_run(spe.0, &mut entry, 0, argument, null_mut(), &mut stop);
            (answer, stop.fields().1)
        };
        // A signal first, from which the program goes on.
        assert_eq!(run(), (0x1234, 0x1234));
        assert_eq!(run(), (0, 7));
        assert_eq!(line.0.map(u32::from_be), [1234, 2, 3, 4]);
        assert_eq!((spe_out_mbox_read(spe.0, &mut word, 1), word), (1, 1234));
        assert_eq!(spe_out_intr_mbox_read(spe.0, &mut word, 1, 1), 1);
        assert_eq!(word, libc::ENOENT.cast_unsigned());
        assert_eq!(spe_image_close(image), 0);
    }
}

#[test]
fn programs_of_both_kinds_share_engines_and_bad_ones_end() {
    // Loops for ever; the engine serves others meanwhile, which end.
    let forever = executable(&part(&[spus("br", 0, 0, 0, 0)], &[]));
    let halts = executable(&part(&[spus("heqi", 0, 5, 0, 0)], &[]));
    let none = executable(&part(&[0x00a0_0000], &[]));
    let channel = executable(&part(&[spus("rdch", 3, 99, 0, 0)], &[]));
    let run = |file: &[u8]| {
        let spe = Spe::new(0);
        let mut handle = ProgramHandle {
            handle_size: HANDLE_BYTES,
            elf_image: file.as_ptr().cast_mut().cast(),
            toe_shadow: null_mut(),
        };
        // SAFETY: a context and a handle that live until the end.
        unsafe {
            assert_eq!(spe_program_load(spe.0, &mut handle), 0);
            let (mut entry, mut stop) = (u32::MAX, std::mem::zeroed::<StopInfo>());
            spe_context_run(spe.0, &mut entry, 0, null_mut(), null_mut(), &mut stop);
            stop.fields().2
        }
    };
    std::thread::spawn(move || run(&forever));
    for _ in 0..3 {
        assert_eq!(run(&halts), 0x04);
        assert_eq!(run(&none), 0x20);
        assert_eq!(run(&channel), 0x40);
    }
    let spe = Spe::new(0);
    let mut handle = ProgramHandle {
        handle_size: HANDLE_BYTES,
        elf_image: executable(&vec![0; STORE_BYTES + 1])
            .leak()
            .as_mut_ptr()
            .cast(),
        toe_shadow: null_mut(),
    };
    // SAFETY: as above.
    assert_eq!(unsafe { spe_program_load(spe.0, &mut handle) }, -1);
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn signals_stop_and_end_programs_of_the_spu_itself() {
    let counts = executable(&part(
        &[
            spus("ai", 3, 3, 0, 1),
            spus("stqa", 3, 0, 0, 0x400),
            spus("br", 0, 0, 0, -2),
        ],
        &[],
    ));
    let spe = Spe::new(0);
    let mut handle = ProgramHandle {
        handle_size: HANDLE_BYTES,
        elf_image: counts.as_ptr().cast_mut().cast(),
        toe_shadow: null_mut(),
    };
    // SAFETY: a context and a handle that live until the end.
    assert_eq!(unsafe { spe_program_load(spe.0, &mut handle) }, 0);
    let count = || spe.context().store.word(0x1000);
    // SAFETY: as above.
    let signal = |signal| unsafe { sidecore_spe_signal(spe.0, signal) };
    let place = spe.0.expose_provenance();
    std::thread::scope(|scope| {
        let run = scope.spawn(move || {
            let own = std::ptr::with_exposed_provenance_mut(place);
            let (mut entry, mut stop) = (u32::MAX, StopInfo::of(Stop::Halt));
            // SAFETY: the context lives through the scope.
            let answer =
                unsafe { spe_context_run(own, &mut entry, 0, null_mut(), null_mut(), &mut stop) };
            (answer, stop.fields())
        });
        while count() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(signal(libc::SIGSTOP), 0);
        // It stops a little later.
        let pause = std::time::Duration::from_millis(20);
        let mut before = count();
        let stands = (0..1000).any(|_| {
            std::thread::sleep(pause);
            std::mem::replace(&mut before, count()) == before
        });
        assert!(stands && !run.is_finished());
        assert_eq!(signal(libc::SIGCONT), 0);
        while count() == before {
            std::thread::yield_now();
        }
        assert_eq!(signal(libc::SIGKILL), 0);
        let (answer, (reason, value, _)) = run.join().unwrap();
        assert_eq!((answer, reason, value), (-1, 5, libc::EINTR as u64));
        assert_eq!((signal(libc::SIGTERM), errno()), (-1, libc::EINVAL));
    });
}
