// Package a is secret.
package a

import "fmt" // secret

// Close closes the secret reader, and says so.
// It may fail.
//
// More secret words.
//go:noinline
func (r *Reader[T]) Close(a int) (string, error) {
	// secret
	x := "// kept" /* secret */ + `/* kept */`
	return x, nil // secret
}

// not of it, secret

func plain() { fmt.Println(1) }

/* Blocks are secret docstrings, too. */
func Open() int { return 1 }

var x = 1 // secret
func after() int { return x }

func declared()
func empty() {
	// secret
}
