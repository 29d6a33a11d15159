//! Calls of threads under filters, answered by others.

use super::*;

/// A thread that makes one call with a pointer to a word; the word after the call.
fn caller(word: u64) -> (Listener, Call, std::thread::JoinHandle<u64>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let asking = std::thread::spawn(move || {
        let mut word = Box::new(word);
        let listener = install(&[(libc::SYS_getcpu, When::Always)]).unwrap();
        sender.send(listener).unwrap();
        // SAFETY: the call is answered without the kernel's part; the word outlives it.
        unsafe { libc::syscall(libc::SYS_getcpu, &raw mut *word, 0, 0) };
        // SAFETY: the word is this thread's; another one has written it while this one waited.
        unsafe { std::ptr::read_volatile(&raw const *word) }
    });
    let listener = receiver.recv().unwrap();
    let call = listener.receive().unwrap().unwrap();
    (listener, call, asking)
}

#[test]
fn what_passes_is_waited_for_and_nothing_else() {
    let after = |errors: &'static [Errno]| {
        let mut errors = errors.iter();
        move || errors.next().map_or(Ok(7), |error| Err(*error))
    };
    let passing = &[Errno::NOMEM, Errno::INTR, Errno::AGAIN, Errno::NOBUFS];
    assert_eq!(patiently(Duration::MAX, after(passing)), Ok(7));
    assert_eq!(patiently(Duration::ZERO, after(passing)), Err(Errno::NOMEM));
    assert_eq!(patiently(Duration::ZERO, after(&[Errno::INTR])), Ok(7));
    let other = after(&[Errno::INTR, Errno::NOENT]);
    assert_eq!(patiently(Duration::MAX, other), Err(Errno::NOENT));
    let interrupted = || Err(Errno::INTR);
    assert_eq!(patiently(Duration::MAX, interrupted), Err(Errno::INTR));
}

#[test]
fn an_answer_that_cannot_be_given_is_noted() {
    let (listener, call, asking) = caller(7);
    assert!(listener.answer(call.id, Answer::Value(0)));
    // A caller that has ended does not count.
    assert!(!listener.answer(call.id, Answer::Value(0)));
    assert!(!listener.is_waiting(call.id));
    assert!(listener.failure().is_none());
    asking.join().unwrap();
    let requests: [fn(&Listener) -> bool; 2] = [
        |listener| listener.answer(7, Answer::Proceed),
        |listener| listener.is_waiting(7),
    ];
    for request in requests {
        // A file that knows no such requests.
        let listener = Listener {
            file: std::fs::File::open("/dev/null").unwrap().into(),
            failure: Cell::new(None),
        };
        assert!(!request(&listener));
        assert!(listener.failure().is_some());
        assert!(listener.receive().is_err());
    }
}

#[test]
fn memory_is_a_waiting_callers_alone() {
    let (listener, call, asking) = caller(7);
    let at = call.arguments[0];
    let mut bytes = [0; 8];
    listener.read(&call, at, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 7);
    listener.write(&call, at, &8u64.to_ne_bytes()).unwrap();
    assert_eq!(listener.write(&call, 1, b"x"), Err(Errno::FAULT));
    assert_eq!(listener.read(&call, 1, &mut bytes), Err(Errno::FAULT));
    let memory = listener.memory(&call).unwrap();
    assert!(listener.answer(call.id, Answer::Value(0)));
    assert_eq!(asking.join().unwrap(), 8);
    // The process lives on, and with it the memory of the call's arguments.
    assert_eq!(listener.write(&call, at, b"x"), Err(Errno::SRCH));
    assert_eq!(listener.read(&call, at, &mut bytes), Err(Errno::SRCH));
    assert!(listener.memory(&call).is_err());
    drop(memory);
}

#[test]
fn a_number_that_is_another_processs_now_is_not_written_to() {
    let (listener, call, asking) = caller(7);
    // As if the caller had ended, and another process had got its number.
    let mut other = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let stale = Call {
        id: call.id + 1,
        thread: other.id().cast_signed(),
        ..call
    };
    let mut bytes = [0; 8];
    let own = bytes.as_ptr().addr() as u64;
    assert_eq!(listener.read(&stale, own, &mut bytes), Err(Errno::SRCH));
    assert_eq!(listener.write(&stale, own, &bytes), Err(Errno::SRCH));
    assert!(listener.memory(&stale).is_err());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(listener.answer(call.id, Answer::Value(0)));
    asking.join().unwrap();
}

#[test]
fn calls_of_a_thread_are_answered_by_another() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let asking = std::thread::spawn(move || {
        // In a process namespace that its session's leader is not in, both are 0.
        // SAFETY: calls without pointers.
        let (group, session) = unsafe { (libc::getpgid(0), libc::getsid(0)) };
        let filter = [
            (libc::SYS_getppid, When::Always),
            (libc::SYS_getpgid, When::Given(0)),
            (libc::SYS_getsid, When::OneOf(0, &[7, 8])),
            (libc::SYS_getuid, When::Unless(5, 7 << 40 | 8)),
        ];
        let listener = install(&filter).unwrap();
        sender.send(listener).unwrap();
        // SAFETY: calls without pointers.
        unsafe {
            (
                libc::getppid(),
                libc::getpgid(0) == group,
                libc::getpgid(1 << 20),
                libc::getsid(0) == session,
                libc::getsid(7),
                libc::getsid(8),
                [7 << 40 | 8, 6 << 40 | 8, 7 << 40 | 9]
                    .map(|last: u64| libc::syscall(libc::SYS_getuid, 0, 0, 0, 0, 0, last)),
            )
        }
    });
    let listener = receiver.recv().unwrap();
    let mut answers = [
        Answer::Value(4711),
        Answer::Value(4712),
        Answer::Fail(Errno::PERM),
        Answer::Value(4713),
        Answer::Value(4714),
        Answer::Value(4715),
    ]
    .into_iter();
    let mut ready = Vec::new();
    for answer in &mut answers {
        crate::local_socket::poll(&[listener.as_fd()], &mut ready, Duration::from_secs(20))
            .unwrap();
        let call = listener.receive().unwrap().unwrap();
        assert!(listener.is_waiting(call.id));
        assert!(listener.answer(call.id, answer));
        assert!(!listener.is_waiting(call.id));
    }
    let got = asking.join().unwrap();
    // SAFETY: a call without pointers.
    let user = i64::from(unsafe { libc::getuid() });
    assert_eq!(got, (4711, true, 4712, true, -1, 4713, [user, 4714, 4715]));
    // No process is left under the filter.
    crate::local_socket::poll(&[listener.as_fd()], &mut ready, Duration::from_secs(20)).unwrap();
    assert_eq!(ready, [true]);
}
