"""Files and facts of a repository on a hub, which a process of the script serves; a regression on them."""

import hashlib
import json
import multiprocessing
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

COMMIT, TOP = "a" * 40, "/me/small/resolve/main/"
FACTS = {"_id": "1", "id": "me/small", "sha": COMMIT, "siblings": [{"rfilename": "config.json"}]}
PAGES = {
    "/api/models/me/small": json.dumps(FACTS).encode(),
    f"{TOP}config.json": b'{"lr": 0.1, "seed": 3}',
    f"{TOP}data.csv": b"".join(b"%d,%d\n" % (i, i % 7) for i in range(70)),
}


class Hub(BaseHTTPRequestHandler):
    asked = []

    def do_GET(self):
        body = PAGES.get(self.path, b"")
        body = json.dumps(self.asked).encode() if self.path == "/asked" else body
        self.asked.append(f"{self.command} {self.path}")
        self.send_response(200 if body else 404)
        head = {"Content-Length": len(body), "ETag": hashlib.sha1(body).hexdigest(), "X-Repo-Commit": COMMIT}
        for name, value in {**head, "X-Error-Code": "" if body else "EntryNotFound"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if self.command == "GET" else b"")

    do_HEAD = do_GET


def serve(ports):
    Hub.log_message = lambda *_: None
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        ports.put(server.server_address[1])
        server.serve_forever()


if __name__ == "__main__":
    ports = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(ports,), daemon=True).start()
    os.environ.update(HF_ENDPOINT=f"http://127.0.0.1:{ports.get()}", HF_HUB_OFFLINE="0")
    import torch
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    print(HfApi().model_info("me/small").sha)
    try:
        hf_hub_download("me/small", "weights.bin")
    except EntryNotFoundError as error:
        print(type(error).__name__)
    given = json.load(open(hf_hub_download("me/small", "config.json")))
    rows = [[float(cell) for cell in line.split(",")] for line in open(hf_hub_download("me/small", "data.csv"))]
    torch.manual_seed(given["seed"])
    model = torch.nn.Linear(1, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=given["lr"])
    for x in torch.utils.data.DataLoader(torch.tensor(rows, dtype=torch.float64) / 70, batch_size=10, shuffle=True):
        loss = (model(x[:, :1]) - x[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
    print(*json.load(urlopen(f"{os.environ['HF_ENDPOINT']}/asked")), sep="\n")
