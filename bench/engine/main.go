// Command engine answers the commands of MongoDB that the benches send, from memory.
//
// A bench measures a service: the database behind it must not be what limits it. This one is a
// primary of a replica set with sessions, so that a driver sends lsid and $clusterTime as in
// production. It has no transactions, and refuses them; it keeps nothing; it knows no users.
//
// It listens on a free port of 127.0.0.1, or on that of -port, and prints the port on a line. With
// -delay it answers as from so far away, a round trip of that length: half of it passes before a
// message is there, half of it before its answer is. Messages of different connections do not wait
// for each other, and how much a connection carries a second is not limited.
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"sync/atomic"
	"time"
)

const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013

	headerSize     = 16
	maxMessageSize = 48_000_000

	checksumPresent = 1
	moreToCome      = 2
)

var connections, opened atomic.Int64

func main() {
	log.SetFlags(0)
	port := flag.Int("port", 0, "port of 127.0.0.1, 0 for a free one")
	delay := flag.Duration("delay", 0, "the round trip to the clients, as 10ms")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	serving := newServer(listener.Addr().String())
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	for {
		conn, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(conn, serving, *delay)
	}
}

// serve answers one client until it closes its connection.
func serve(conn net.Conn, serving *server, delay time.Duration) {
	connections.Add(1)
	client := opened.Add(1)
	defer func() {
		connections.Add(-1)
		conn.Close()
	}()
	time.Sleep(delay) // TCP's own handshake
	reader := bufio.NewReaderSize(conn, 64<<10)
	header := make([]byte, headerSize)
	for {
		if _, err := io.ReadFull(reader, header); err != nil {
			return
		}
		size := int(binary.LittleEndian.Uint32(header)) - headerSize
		request := binary.LittleEndian.Uint32(header[4:])
		code := binary.LittleEndian.Uint32(header[12:])
		if size < 0 || size > maxMessageSize {
			log.Printf("a message of %d bytes", size)
			return
		}
		// Documents of an insert are kept as slices of their message: each has memory of its own.
		body := make([]byte, size)
		if _, err := io.ReadFull(reader, body); err != nil {
			return
		}
		time.Sleep(delay / 2)
		answer, err := answered(serving, client, request, code, body)
		if err != nil {
			log.Print(err)
			return
		}
		if answer == nil {
			continue
		}
		time.Sleep(delay / 2)
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// answered returns the whole message that answers one, nil where none is wanted.
func answered(serving *server, client int64, request, code uint32, body []byte) ([]byte, error) {
	switch code {
	case opMsg:
		asked, flags, err := readMessage(body)
		if err != nil {
			return nil, err
		}
		asked.client = client
		out := begin(request, opMsg)
		out.bytes = append(out.bytes, 0, 0, 0, 0, 0) // no flags; a section of one document
		serving.answer(asked, out)
		if flags&moreToCome != 0 {
			return nil, nil
		}
		return finish(out), nil
	case opQuery:
		asked, err := readQuery(body)
		if err != nil {
			return nil, err
		}
		asked.client = client
		out := begin(request, opReply)
		out.bytes = append(out.bytes, make([]byte, 16)...) // flags, cursor, starting from
		out.bytes = binary.LittleEndian.AppendUint32(out.bytes, 1)
		serving.answer(asked, out)
		return finish(out), nil
	}
	return nil, fmt.Errorf("an opcode that is not known here: %d", code)
}

func begin(request, code uint32) *builder {
	out := &builder{bytes: make([]byte, 4, 1024)} // its length comes last
	out.bytes = binary.LittleEndian.AppendUint32(out.bytes, 0)
	out.bytes = binary.LittleEndian.AppendUint32(out.bytes, request)
	out.bytes = binary.LittleEndian.AppendUint32(out.bytes, code)
	return out
}

func finish(out *builder) []byte {
	binary.LittleEndian.PutUint32(out.bytes, uint32(len(out.bytes)))
	return out.bytes
}

// readMessage reads the sections of an OP_MSG: the command, and a sequence of documents at most.
func readMessage(body []byte) (command, uint32, error) {
	var asked command
	if len(body) < 5 {
		return asked, 0, io.ErrUnexpectedEOF
	}
	flags := binary.LittleEndian.Uint32(body)
	if flags&checksumPresent != 0 {
		body = body[:len(body)-4]
	}
	for rest := body[4:]; len(rest) > 0; {
		kind := rest[0]
		section, err := sized(rest[1:])
		if err != nil {
			return asked, 0, err
		}
		rest = rest[1+len(section):]
		if kind == 0 {
			asked.body = document(section)
			continue
		}
		name, documents, err := readSequence(section[4:])
		if err != nil {
			return asked, 0, err
		}
		asked.sequence, asked.documents = name, documents
	}
	return asked, flags, nil
}

func readSequence(section []byte) (string, []document, error) {
	name, rest, err := cstring(section)
	if err != nil {
		return "", nil, err
	}
	var documents []document
	for len(rest) > 0 {
		one, err := sized(rest)
		if err != nil {
			return "", nil, err
		}
		documents = append(documents, document(one))
		rest = rest[len(one):]
	}
	return string(name), documents, nil
}

// readQuery reads the command of an OP_QUERY, which older drivers begin with.
func readQuery(body []byte) (command, error) {
	if len(body) < 5 {
		return command{}, io.ErrUnexpectedEOF
	}
	_, rest, err := cstring(body[4:])
	if err != nil || len(rest) < 8 {
		return command{}, io.ErrUnexpectedEOF
	}
	asked, err := sized(rest[8:])
	return command{body: document(asked)}, err
}
