use super::*;
use crate::supervisor::tests::fixtures::callers;

const SOCKET: u64 = 7;

fn limit(at: Instant) -> Option<Limit> {
    let errno = Errno::INPROGRESS;
    Some(Limit { at, errno })
}

/// Parks calls of [`callers`], in order, with these limits.
fn parked(limits: &[Option<Limit>]) -> (Calls, crate::supervisor::tests::fixtures::Callers) {
    let (listener, callers) = callers(i32::try_from(limits.len()).unwrap());
    let mut calls = Calls::new(listener);
    let listener = calls.listener();
    for (call, limit) in callers.calls.iter().zip(limits) {
        let caller = Caller::new(*call, &listener);
        let reply = calls.park(SOCKET, &caller, *limit, Goal::Completion);
        assert!(matches!(reply, Reply::Later));
    }
    (calls, callers)
}

#[test]
fn a_socket_without_calls_has_no_queue() {
    let (mut calls, callers) = parked(&[]);
    assert!(!calls.has(SOCKET) && !calls.has_live(SOCKET));
    calls.wake(SOCKET);
    assert!(!calls.has_woken());
    assert!(calls.take(SOCKET).is_empty());
    calls.put_back(SOCKET, VecDeque::new());
    assert!(!calls.has(SOCKET));
    calls.fail(SOCKET, Errno::BADF);
    assert!(callers.results().is_empty());
}

#[test]
fn calls_wait_in_order_until_they_are_taken() {
    let (mut calls, callers) = parked(&[None, None, None]);
    assert!(calls.has(SOCKET) && calls.has_live(SOCKET));
    assert!(!calls.has(SOCKET + 1));
    let taken = calls.take(SOCKET);
    let ids = |queue: &VecDeque<Waiting>| queue.iter().map(|it| it.call.id).collect::<Vec<_>>();
    let expected: Vec<u64> = callers.calls.iter().map(|call| call.id).collect();
    assert_eq!(ids(&taken), expected);
    assert!(!calls.has(SOCKET));
    calls.put_back(SOCKET, taken);
    assert!(calls.has(SOCKET));
    calls.fail(SOCKET, Errno::CONNRESET);
    assert!(!calls.has(SOCKET));
    assert_eq!(callers.results(), [Err(Errno::CONNRESET); 3]);
}

#[test]
fn an_answered_call_is_dead_and_leaves_its_queue_with_the_next() {
    let (listener, callers) = callers(2);
    let mut calls = Calls::new(listener);
    let listener = calls.listener();
    let [first, second] = [0, 1].map(|at| Caller::new(callers.calls[at], &listener));
    calls.park(SOCKET, &first, limit(Instant::now()), Goal::Completion);
    assert!(calls.is_waiting(&first.call));
    assert!(calls.answer(&first.call, Answer::Value(0)));
    // As after a signal: the call no longer waits, and the queue does not know it.
    assert!(!calls.is_waiting(&first.call));
    assert!(!calls.answer(&first.call, Answer::Value(0)));
    assert!(calls.has(SOCKET) && !calls.has_live(SOCKET) && calls.has_limits());
    calls.park(SOCKET, &second, None, Goal::Beginning);
    assert!(calls.has_live(SOCKET) && !calls.has_limits());
    let taken = calls.take(SOCKET);
    assert_eq!((taken.len(), taken[0].goal), (1, Goal::Beginning));
    calls.answer(&second.call, Answer::Fail(Errno::AGAIN));
    assert_eq!(callers.results(), [Ok(()), Err(Errno::AGAIN)]);
}

#[test]
fn a_woken_socket_is_repeated_once_a_round() {
    let (mut calls, callers) = parked(&[None]);
    calls.wake(SOCKET);
    calls.wake(SOCKET);
    assert!(calls.has_woken());
    assert_eq!(calls.take_woken(), [SOCKET]);
    assert!(!calls.has_woken());
    // Woken while its calls are repeated: that is the next round's.
    calls.wake(SOCKET);
    assert_eq!(calls.take_woken(), [SOCKET]);
    calls.fail(SOCKET, Errno::BADF);
    assert_eq!(callers.results(), [Err(Errno::BADF)]);
}

#[test]
fn patience_ends_with_the_errno_of_the_call() {
    let now = Instant::now();
    let later = now + Duration::from_secs(60);
    let (mut calls, callers) = parked(&[limit(now), limit(later), None]);
    assert!(calls.has_limits());
    calls.end_patience(now);
    assert_eq!(calls.take(SOCKET).len(), 2);
    assert!(!calls.has_limits());
    for call in &callers.calls[1..] {
        assert!(calls.answer(call, Answer::Value(0)));
    }
    let expected = [Err(Errno::INPROGRESS), Ok(()), Ok(())];
    assert_eq!(callers.results(), expected);
}

#[test]
fn the_last_call_that_ends_takes_the_queue_with_it() {
    let now = Instant::now();
    let (mut calls, callers) = parked(&[limit(now)]);
    calls.end_patience(now + Duration::from_nanos(1));
    assert!(!calls.has(SOCKET) && !calls.has_limits());
    assert_eq!(callers.results(), [Err(Errno::INPROGRESS)]);
}

#[test]
fn a_repeated_call_keeps_its_first_limit() {
    let now = Instant::now();
    let (mut calls, callers) = parked(&[limit(now)]);
    let listener = calls.listener();
    let before = calls.take(SOCKET)[0];
    let caller = Caller::new(before.call, &listener);
    // Its option was changed meanwhile: it would wait without a limit, or longer.
    for again in [None, limit(now + Duration::from_secs(60))] {
        calls.park(SOCKET, &caller, again, Goal::Completion);
        calls.keep_limit(SOCKET, &before);
        assert!(calls.has_limits());
        assert_eq!(calls.take(SOCKET)[0].limit, before.limit);
        assert!(!calls.has_limits());
    }
    // One that was answered instead has none to keep.
    calls.keep_limit(SOCKET, &before);
    assert!(!calls.has(SOCKET));
    calls.answer(&before.call, Answer::Value(0));
    assert_eq!(callers.results(), [Ok(())]);
}

#[test]
fn a_limit_needs_patience() {
    assert_eq!(Limit::after(None, Errno::AGAIN), None);
    let before = Instant::now();
    let limit = Limit::after(Some(Duration::from_secs(5)), Errno::AGAIN).unwrap();
    assert!(limit.at >= before + Duration::from_secs(5));
    assert_eq!(limit.errno, Errno::AGAIN);
}

#[test]
fn an_answer_that_is_not_heard_is_kept_for_the_repeated_call() {
    let (listener, callers) = callers(1);
    let mut calls = Calls::new(listener);
    let listener = calls.listener();
    // Its descriptor refers to this socket: the call is about the file that it has placed.
    let placed = crate::socket::files::inode_of(&callers.socket).unwrap();
    let call = callers.calls[0];
    let stale = Call {
        id: call.id + 1,
        ..call
    };
    calls.answer_placed(stale, Answer::Value(5), Some(placed));
    let other = Call {
        arguments: [0; 6],
        ..call
    };
    assert!(calls.kept.take(&Caller::new(other, &listener)).is_none());
    let taken = calls.kept.take(&Caller::new(call, &listener));
    assert!(matches!(taken, Some((Answer::Value(5), of)) if of == placed));
    assert!(calls.kept.take(&Caller::new(call, &listener)).is_none());
    // Without a file that was placed, the repeated call is decided anew.
    calls.answer_placed(stale, Answer::Value(5), None);
    assert!(calls.kept.take(&Caller::new(call, &listener)).is_none());
    calls.answer_placed(call, Answer::Value(0), Some(placed));
    assert!(calls.kept.take(&Caller::new(call, &listener)).is_none());
    assert_eq!(callers.results(), [Ok(())]);
}
