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

/// What a guest reads of itself: its name, random numbers of its kernel's, and a word on its disk.
const WHO: &str = "hostname; cat /proc/sys/kernel/random/uuid; head -c 8 /dev/vda";

#[test]
fn many_go_on_in_one_process_and_each_is_a_machine_of_its_own() {
    const COUNT: usize = 6;
    let captured = Guest::boot(1).capture();
    let guests = captured.restore_each(COUNT);
    assert_eq!(guests.len(), COUNT);
    for (place, guest) in guests.iter().enumerate() {
        guest.out(&format!(
            "echo mine-{place}. | dd of=/dev/vda conv=fsync 2>/dev/null"
        ));
    }
    let mut seen = std::collections::HashSet::new();
    for (place, guest) in guests.iter().enumerate() {
        let out = guest.out(WHO);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], format!("child-{place}"));
        assert!(seen.insert(lines[1].to_owned()), "{out}");
        assert_eq!(lines[2], format!("mine-{place}."));
    }
}
