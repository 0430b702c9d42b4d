// Package tree holds the tests over the repository itself: which module may import
// which, what contracts must say, that documents name what exists, that
// all modules agree on versions, and that no test waits by sleeping.
//
// It holds nothing but tests. Each of them reads files and asks the go command; none
// must ever start a process of Staddle, need root, or change a file. A rule that
// can be told by a linter stands in .golangci.yml instead.
package tree
