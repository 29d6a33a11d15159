// 60 requests at once to Server; prints `right` or `wrong`.
import java.net.URI;
import java.net.http.*;
import java.util.*;
import java.util.concurrent.CompletableFuture;
public class Client {
  public static void main(String[] arguments) throws Exception {
    var client = HttpClient.newHttpClient();
    var random = new Random(1);
    var waiting = new ArrayList<CompletableFuture<Boolean>>();
    for (int i = 0; i < 60; i++) {
      byte[] sent = new byte[1 + i * 3000];
      random.nextBytes(sent);
      var request = HttpRequest.newBuilder(URI.create("http://" + arguments[0] + ":8089/"))
        .POST(HttpRequest.BodyPublishers.ofByteArray(sent)).build();
      waiting.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray())
        .thenApply(response -> Arrays.equals(response.body(), sent)));
    }
    for (var each : waiting) if (!each.get()) { System.out.println("wrong"); return; }
    System.out.println("right");
    System.exit(0);
  }
}
