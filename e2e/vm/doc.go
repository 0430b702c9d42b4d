// Package vm holds the end-to-end tests that need a whole machine: cgroup version 2
// alone, systemd as the first process of a kernel, a real reboot, a power cut.
//
// The tests share one machine that qemu emulates, without the help of the
// processor: it is 10 to 50 times slower than this one, so limits here are wide and
// say nothing about speed. They need root and the build tag vm; run make test-vm.
// Nothing is shared with the machine that they run on but processor and memory.
package vm
