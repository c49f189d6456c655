//! A Linux guest that goes on in another machine.

use std::time::Instant;

use tine_tests::linux::Guest;

#[test]
fn processes_go_on_in_another_machine() {
    let guest = Guest::boot(1);
    guest.out("mkdir -p /run/t; echo kept > /run/t/file");
    guest.out("(i=0; while :; do i=$((i+1)); echo $i > /run/t/new; mv /run/t/new /run/t/count; done) </dev/null >/dev/null 2>&1 &");
    let before: u64 = guest
        .out("until cat /run/t/count 2>/dev/null; do :; done")
        .parse()
        .unwrap();
    let mut guest = guest;
    for round in 0..3 {
        let start = Instant::now();
        let captured = guest.capture();
        println!("round {round}: captured in {:?}", start.elapsed());
        let start = Instant::now();
        guest = captured.restore();
        println!("restored in {:?}", start.elapsed());
        let out = guest.out("cat /run/t/file");
        println!("first exec after {:?}", start.elapsed());
        assert_eq!(out, "kept");
    }
    let after: u64 = guest.out("cat /run/t/count").parse().unwrap();
    assert!(after > before, "{after} > {before}");
}
