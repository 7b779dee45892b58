//! The seccomp filter. It determines about which of the command's system calls the kernel asks the supervisor.

use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter};

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// First system call number of the x32 ABI.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH_AT: u32 = 4;
const ARGUMENTS: u32 = 16;

/// TCP options that set keys for signatures: `TCP_MD5SIG`, `TCP_MD5SIG_EXT`, `TCP_AO_ADD_KEY`.
pub const KEYS: [u32; 3] = [14, 32, 38];

/// Returns the filter. With this filter, the kernel asks neither about calls of other architectures nor about
/// irrelevant calls, for instance `sendto` without an address (the C library's `send` makes this call). If `tcp_only`
/// is true, the kernel also does not ask about calls that send datagrams.
pub fn program(tcp_only: bool) -> Vec<sock_filter> {
    let mut program = vec![load(ARCH_AT), jump(BPF_JEQ, ARCH, 1, 0), answer(libc::SECCOMP_RET_ALLOW), load(NUMBER)];
    #[cfg(target_arch = "x86_64")]
    program.extend([jump(BPF_JGE, X32, 0, 1), answer(libc::SECCOMP_RET_ALLOW)]);
    let mut asks = |number: c_long| {
        program.extend([jump(BPF_JEQ, number as u32, 0, 1), answer(libc::SECCOMP_RET_USER_NOTIF)]);
    };
    asks(libc::SYS_connect);
    if !tcp_only {
        asks(libc::SYS_sendmsg);
        asks(libc::SYS_sendmmsg);
        program.extend([
            jump(BPF_JEQ, libc::SYS_sendto as u32, 0, 6),
            load(low(4)),
            jump(BPF_JSET, u32::MAX, 3, 0),
            load(high(4)),
            jump(BPF_JSET, u32::MAX, 1, 0),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(libc::SECCOMP_RET_USER_NOTIF),
        ]);
    }
    let [md5, md5_more, ao] = KEYS;
    program.extend([
        jump(BPF_JEQ, libc::SYS_setsockopt as u32, 0, 7),
        load(low(1)),
        jump(BPF_JEQ, libc::IPPROTO_TCP as u32, 0, 5),
        load(low(2)),
        jump(BPF_JEQ, md5, 2, 0),
        jump(BPF_JEQ, md5_more, 1, 0),
        jump(BPF_JEQ, ao, 0, 1),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
    ]);
    program
}

#[cfg(target_endian = "little")]
const fn low(argument: u32) -> u32 {
    ARGUMENTS + 8 * argument
}

#[cfg(target_endian = "little")]
const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

const fn load(at: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: at }
}

const fn jump(test: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: yes, jf: no, k: value }
}

const fn answer(action: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: action }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates the filter in the way in which the kernel does.
    fn verdict(program: &[sock_filter], arch: u32, number: c_long, arguments: [u64; 6]) -> u32 {
        let mut data = [(number as u32).to_ne_bytes().to_vec(), arch.to_ne_bytes().to_vec(), vec![0; 8]].concat();
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let (mut at, mut register) = (0, 0_u32);
        loop {
            let one = program[at];
            at += 1;
            let code = u32::from(one.code);
            if code == BPF_LD | BPF_W | BPF_ABS {
                register = u32::from_ne_bytes(*data[one.k as usize..].first_chunk().expect("a word"));
            } else if code == BPF_RET | BPF_K {
                return one.k;
            } else {
                let holds = match code & 0xf0 {
                    BPF_JEQ => register == one.k,
                    BPF_JGE => register >= one.k,
                    BPF_JSET => register & one.k != 0,
                    other => panic!("{other}"),
                };
                at += usize::from(if holds { one.jt } else { one.jf });
            }
        }
    }

    #[test]
    fn the_supervisor_is_asked_about_calls_that_open_flows_and_no_others() {
        let (asks, passes) = (libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_RET_ALLOW);
        let address = [3, 1, 1, 0, 0x7fff_0000_0000, 16];
        let all = program(false);
        for (number, arguments, wanted) in [
            (libc::SYS_connect, [3, 1, 16, 0, 0, 0], asks),
            (libc::SYS_sendto, address, asks),
            (libc::SYS_sendto, [3, 1, 1, 0, 1, 16], asks),
            (libc::SYS_sendto, [3, 1, 1, 0, 0, 0], passes),
            (libc::SYS_sendmsg, [3, 1, 0, 0, 0, 0], asks),
            (libc::SYS_sendmmsg, [3, 1, 1, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [3, 6, 14, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [3, 6, 32, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [3, 6, 38, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [3, 6, 1, 0, 0, 0], passes),
            (libc::SYS_setsockopt, [3, 1, 14, 0, 0, 0], passes),
            (libc::SYS_write, [3, 1, 1, 0, 0, 0], passes),
            (libc::SYS_bind, [3, 1, 16, 0, 0, 0], passes),
        ] {
            assert_eq!(verdict(&all, ARCH, number, arguments), wanted, "{number} {arguments:?}");
            assert_eq!(verdict(&all, 0x4000_0003, number, arguments), passes, "another architecture");
        }
        let tcp_only = program(true);
        assert_eq!(verdict(&tcp_only, ARCH, libc::SYS_connect, address), asks);
        for number in [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg] {
            assert_eq!(verdict(&tcp_only, ARCH, number, address), passes);
        }
        #[cfg(target_arch = "x86_64")]
        assert_eq!(verdict(&all, ARCH, libc::SYS_connect | c_long::from(X32), address), passes);
    }
}
