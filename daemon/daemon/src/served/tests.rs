//! Host versions compared with the standard library and with a hash of one piece.

use super::*;

fn run(name: &str, words: [u64; WORDS], input: &[u8], output: &mut [u8]) -> Result<Reply, String> {
    let registry = Registry::with_spin_us();
    let entry = registry.entry(registry.find(name).unwrap()).unwrap();
    let gone = AtomicBool::new(false);
    let mut memory = Memory::new(&gone);
    memory.add_input(SharedSlice::from_ref(input));
    memory.add_output(SharedSlice::from_mut(output));
    (entry.host)(&Request { words }, &memory).map_err(|error| error.to_string())
}

#[test]
fn builtin_kernels_do_what_they_say() {
    for bytes in [0, 1, 100, 16384, 16385, 100_000] {
        let input: Vec<u8> = (0..bytes).map(|index: usize| (index * 31) as u8).collect();
        let mut output = vec![0; bytes + 7];
        let reply = run("echo", [1, 2, 3, 4, 5, 6], &input, &mut output).unwrap();
        assert_eq!(reply.words, [bytes as u64, 2, 3, 4, 5, 6]);
        assert_eq!(&output[..bytes], input);
        assert!(output[bytes..].iter().all(|&byte| byte == 0));
        let reply = run("xxh3", [9, 0, 0, 0, 0, 0], &input, &mut []).unwrap();
        assert_eq!(
            reply.words[0],
            xxhash_rust::xxh3::xxh3_64_with_seed(&input, 9)
        );
    }
    let values: Vec<f64> = (0..10_000).map(f64::from).collect();
    let input = sidecore_sys::plain::bytes_of(&values);
    let reply = run("sum_f64", [0; WORDS], input, &mut []).unwrap();
    assert_eq!(f64::from_bits(reply.words[0]), 9_999.0 * 10_000.0 / 2.0);
    assert_eq!(
        run("empty", [7; WORDS], &[], &mut []).unwrap(),
        Reply::default()
    );
    assert_eq!(
        run("spin_us", [3; WORDS], &[], &mut []).unwrap().words[1],
        3
    );
}

#[test]
fn requests_that_make_no_sense_are_errors() {
    let long = run("echo", [0; WORDS], &[1; 10], &mut [0; 9]).unwrap_err();
    assert!(
        long.contains("10 bytes do not fit an output of 9"),
        "{long}"
    );
    let odd = run("sum_f64", [0; WORDS], &[1; 9], &mut []).unwrap_err();
    assert!(odd.contains("9 bytes"), "{odd}");
    let forever = run("spin_us", [u64::MAX; WORDS], &[], &mut []).unwrap_err();
    assert!(forever.contains("more than"), "{forever}");
}

#[test]
fn a_kernel_that_only_spins_is_served_on_request_only() {
    assert_eq!(Registry::builtin().find("spin_us"), None);
    assert!(Registry::with_spin_us().find("spin_us").is_some());
}

struct Named;

impl Served for Named {
    const NAME: &'static str = "echo";
    type State = ();

    fn engine<'c>(
        _cx: &mut Cx<'c, Self>,
        _request: &Request,
        _memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        Ok(Reply::default())
    }
}

#[test]
fn a_name_is_given_once() {
    let error = Registry::builtin().with::<Named>().unwrap_err();
    assert_eq!(error, RegistryError::NameTaken { name: "echo" });
}
