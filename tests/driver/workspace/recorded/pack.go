// Packs a directory with Go's archive/tar: go run pack.go FORMAT DIRECTORY > go-FORMAT.tar
// FORMAT is ustar (which leaves out what it cannot hold), pax or gnu.
package main

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

var formats = map[string]tar.Format{"ustar": tar.FormatUSTAR, "pax": tar.FormatPAX, "gnu": tar.FormatGNU}

func main() {
	root, format := os.Args[2], formats[os.Args[1]]
	out := tar.NewWriter(os.Stdout)
	check(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := entry.Info()
		check(err)
		header, err := tar.FileInfoHeader(info, "")
		check(err)
		header.Name, _ = filepath.Rel(root, path)
		if info.IsDir() {
			header.Name += "/"
		}
		header.Format = format
		header.ModTime, header.Uname, header.Gname = time.Unix(1, 500_000_000), "", ""
		if format != tar.FormatPAX {
			header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(1, 0), time.Time{}, time.Time{}
		}
		if err := out.WriteHeader(header); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return nil
		}
		if !info.IsDir() {
			content, err := os.ReadFile(path)
			check(err)
			_, err = out.Write(content)
			check(err)
		}
		return nil
	}))
	check(out.Close())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
