// Connects to protected destinations from Go: Dial fits http.Transport's DialContext and its like.
//
//	CGO_CFLAGS=-I.../include CGO_LDFLAGS=-L.../target/release go build
package main

/*
#cgo LDFLAGS: -lvouchsafe
#include <stdlib.h>
#include "vouchsafe.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"unsafe"
)

// Session is the session that `vouchsafe login` began.
type Session struct{ session *C.vouchsafe_session }

// Open opens it.
func Open() (*Session, error) {
	// The reason of a failure is kept for each thread of the system.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	session := C.vouchsafe_open(nil)
	if session == nil {
		return nil, errors.New(C.GoString(C.vouchsafe_error()))
	}
	return &Session{session}, nil
}

// Dial connects by TCP.
func (s *Session) Dial(host string, port uint16) (net.Conn, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := C.CString(host)
	defer C.free(unsafe.Pointer(name))
	descriptor := C.vouchsafe_connect(s.session, name, C.uint16_t(port), 0)
	if descriptor < 0 {
		return nil, errors.New(C.GoString(C.vouchsafe_error()))
	}
	// FileConn works on a copy, and puts it into the mode that Go needs.
	file := os.NewFile(uintptr(descriptor), host)
	defer file.Close()
	return net.FileConn(file)
}

// HOST PORT WORDS: sends the words, prints the answer.
func main() {
	session, err := Open()
	if err == nil {
		err = talk(session)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func talk(session *Session) error {
	port, err := strconv.ParseUint(os.Args[2], 10, 16)
	if err != nil {
		return err
	}
	connection, err := session.Dial(os.Args[1], uint16(port))
	if err != nil {
		return err
	}
	defer connection.Close()
	fmt.Fprint(connection, os.Args[3])
	if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(connection)
	fmt.Println(string(answer))
	return err
}
