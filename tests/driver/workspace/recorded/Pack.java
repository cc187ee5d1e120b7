// Packs a directory with Apache Commons Compress; Debian has it as libcommons-compress-java:
// java -cp /usr/share/java/commons-compress.jar Pack.java FORMAT DIRECTORY > java-FORMAT.tar
// FORMAT is posix or gnu: how long names and large numbers are written.

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.commons.compress.archivers.tar.TarArchiveEntry;
import org.apache.commons.compress.archivers.tar.TarArchiveOutputStream;

public class Pack {
    public static void main(String[] arguments) throws Exception {
        boolean posix = arguments[0].equals("posix");
        Path root = Path.of(arguments[1]);
        List<Path> paths;
        try (var walk = Files.walk(root)) {
            paths = walk.filter(path -> !path.equals(root)).sorted().collect(Collectors.toList());
        }
        try (var out = new TarArchiveOutputStream(System.out, 512, "UTF-8")) {
            out.setLongFileMode(
                posix ? TarArchiveOutputStream.LONGFILE_POSIX : TarArchiveOutputStream.LONGFILE_GNU);
            out.setBigNumberMode(
                posix ? TarArchiveOutputStream.BIGNUMBER_POSIX : TarArchiveOutputStream.BIGNUMBER_STAR);
            out.setAddPaxHeadersForNonAsciiNames(posix);
            for (Path path : paths) {
                var entry = new TarArchiveEntry(path, root.relativize(path).toString());
                entry.setModTime(1000L);
                entry.setUserName("");
                entry.setGroupName("");
                if (Files.isExecutable(path) && !Files.isDirectory(path)) {
                    entry.setMode(0100755);
                }
                out.putArchiveEntry(entry);
                if (!entry.isDirectory()) {
                    Files.copy(path, out);
                }
                out.closeArchiveEntry();
            }
        }
    }
}
